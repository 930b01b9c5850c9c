"""What the admission policies say, in CEL: who may do what, and what a request has to look like.

Each expression must not fail on any object that the API server lets through to it: on Pods that would refuse the pods of
everybody. So optional fields are asked for with `has`, and texts are matched before they are read as numbers.
"""

from __future__ import annotations

from typing import Final

from sharepod_operator.core.request import MAX_TAG_LENGTH
from sharepod_operator.manifest import names
from sharepod_operator.manifest.gpu_env import BACKEND_ENV, GPU_NAMES, GPU_PREFIXES

_PREFIX: Final = f"{names.GROUP}/"


def _listed(field: str) -> str:
    """The names in a comma list of the ConfigMap."""
    return f"params.data.{field}.split(',').map(name, name.trim())"


def _annotations(obj: str) -> str:
    return f"({obj} != null && has({obj}.metadata.annotations) ? {obj}.metadata.annotations : {{}})"


def _owners(obj: str) -> str:
    return f"({obj} != null && has({obj}.metadata.ownerReferences) ? {obj}.metadata.ownerReferences : [])"


def _text_list(words: tuple[str, ...]) -> str:
    return "[" + ", ".join(f"'{word}'" for word in words) + "]"


IS_OPERATOR: Final = f"request.userInfo.username in {_listed('operators')}"
SERVED: Final = (
    f"request.resource.resource == '{names.PLURAL}' ||\n"
    f"(has(object.spec.schedulerName) && object.spec.schedulerName in {_listed('schedulers')})"
)

# The ledger: annotations of ours on Pods, and who owns a Pod.

GUARDED_CHANGE: Final = (
    f"{_annotations('object')}.exists(key, key.startsWith('{_PREFIX}')) ||\n"
    f"{_annotations('oldObject')}.exists(key, key.startsWith('{_PREFIX}')) ||\n"
    f"{_owners('object')}.exists(owner, owner.apiVersion.startsWith('{_PREFIX}'))"
)
LEDGER_VARIABLES: Final = {
    "after": _annotations("object"),
    "before": _annotations("oldObject"),
    "changed": (
        f"variables.after.filter(key, key.startsWith('{_PREFIX}') &&\n"
        "  !(key in variables.before && variables.before[key] == variables.after[key])) +\n"
        f"variables.before.filter(key, key.startsWith('{_PREFIX}') && !(key in variables.after))"
    ),
    "owners": f"{_owners('oldObject')}.map(owner, owner.uid)",
}
LEDGER_VALIDATIONS: Final = (
    {
        "expression": "variables.changed.size() == 0",
        "message": "The annotations faasshare.tum/… of a Pod are the operator's ledger and can't be set or changed by users.",
        "messageExpression": (
            "'The annotation ' + variables.changed[0] + ' belongs to the ledger of the operator: ' +\n"
            "'only the names listed as operators in the ConfigMap sharepod-policy may set or change it, and ' +\n"
            "request.userInfo.username + ' is none of them.'"
        ),
    },
    {
        "expression": (
            f"{_owners('object')}.all(owner, !owner.apiVersion.startsWith('{_PREFIX}') || owner.uid in variables.owners)"
        ),
        "message": "Only the operator makes Pods that a SharePod owns; create a SharePod, or leave the ownerReference out.",
    },
)

# SharePods start Pods.

NEEDS_POD_RIGHTS: Final = (
    "request.operation == 'CREATE' ||\n"
    "object.spec.podSpec != oldObject.spec.podSpec ||\n"
    "has(object.spec.gpu) != has(oldObject.spec.gpu) ||\n"
    "(has(object.spec.gpu) && object.spec.gpu != oldObject.spec.gpu) ||\n"
    f"{_annotations('object')} != {_annotations('oldObject')} ||\n"
    "(has(object.metadata.labels) ? object.metadata.labels : {}) !=\n"
    "  (has(oldObject.metadata.labels) ? oldObject.metadata.labels : {})"
)
POD_RIGHTS: Final = "authorizer.group('').resource('pods').namespace(request.namespace).check('create').allowed()"

# The form of a request.

_NUMBER: Final = "^([0-9]+[.]?[0-9]*|[.][0-9]+)([eE][+-]?[0-9]{1,2})?$"
_DEVICE: Final = "^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
_BYTES: Final = "^[0-9]{1,19}$"
_TAGS: Final = (names.KUBESHARE_AFFINITY, names.KUBESHARE_ANTI_AFFINITY, names.KUBESHARE_EXCLUSION)


def _written(annotation: str, typed: str) -> str:
    """The annotation's text where it counts: a typed field of the same meaning wins."""
    value = f"variables.annotations[?'{annotation}'].orValue('')"
    return f"has(variables.gpu.{typed}) ? '' : {value}" if typed else value


def _has_resources(containers: str) -> str:
    """Whether any container of an optional list asks for a GPU by one of Koordinator's names."""
    wanted = _text_list(names.KOORDINATOR_RESOURCES)
    either = " || ".join(
        f"(has(c.resources.{kind}) && c.resources.{kind}.exists(key, key in {wanted}))"
        for kind in ("limits", "requests")
    )
    return f"(has({containers}) && {containers}.exists(c, has(c.resources) && ({either})))"


def _any_resources(spec: str) -> str:
    return f"{_has_resources(f'{spec}.containers')} ||\n{_has_resources(f'{spec}.initContainers')}"


REQUEST_MATCHES: Final = {
    "has-annotations-of-kubeshare": (
        f"{_annotations('object')}.exists(key, key.startsWith('kubeshare/')) &&\n"
        f"(request.operation == 'CREATE' || {_annotations('object')} != {_annotations('oldObject')} ||\n"
        f"  (request.resource.resource == '{names.PLURAL}' && object.spec != oldObject.spec))"
    ),
}
REQUEST_VARIABLES: Final = {
    "annotations": _annotations("object"),
    "gpu": f"request.resource.resource == '{names.PLURAL}' && has(object.spec.gpu) ? object.spec.gpu : {{}}",
    "typed": f"request.resource.resource == '{names.PLURAL}' && has(object.spec.gpu)",
    "request": _written(names.KUBESHARE_REQUEST, "request"),
    "limit": _written(names.KUBESHARE_LIMIT, "limit"),
    "memory": _written(names.KUBESHARE_MEMORY, "memory"),
    "device": _written(names.KUBESHARE_GPU_ID, ""),
    "amounts": (f"{_text_list(names.KUBESHARE_AMOUNTS)}.filter(key, variables.annotations[?key].orValue('') != '')"),
    "requestRead": f"variables.request.matches('{_NUMBER}')",
    "limitRead": f"variables.limit.matches('{_NUMBER}')",
    "spec": f"request.resource.resource == '{names.PLURAL}' ? object.spec.podSpec : object.spec",
    "resources": _any_resources("variables.spec"),
}


def _shown(variable: str) -> str:
    """A value in quotes, cut where it is long."""
    return f"'\"' + (size(variables.{variable}) > 64 ? variables.{variable}.substring(0, 64) : variables.{variable}) + '\"'"


REQUEST_VALIDATIONS: Final = (
    {
        "expression": "variables.typed || variables.amounts.size() == 0 || variables.amounts.size() == 3",
        "message": f"The annotations {', '.join(names.KUBESHARE_AMOUNTS)} belong together: write all three, or none of them.",
        "messageExpression": (
            f"'The annotations {', '.join(names.KUBESHARE_AMOUNTS)} belong together, and only ' +\n"
            "variables.amounts.join(' and ') + ' is there: write all three, or none of them.'"
        ),
    },
    {
        "expression": ("variables.request == '' || (variables.requestRead && double(variables.request) <= 1.0)"),
        "message": f"annotation {names.KUBESHARE_REQUEST} must be a number from 0 to 1, such as 0.5.",
        "messageExpression": (
            f"'annotation {names.KUBESHARE_REQUEST}: ' + {_shown('request')} +\n' must be a number from 0 to 1, such as 0.5.'"
        ),
    },
    {
        "expression": (
            "variables.limit == '' ||\n"
            "(variables.limitRead && double(variables.limit) > 0.0 && double(variables.limit) <= 1.0)"
        ),
        "message": f"annotation {names.KUBESHARE_LIMIT} must be a number above 0 and at most 1, such as 1.0.",
        "messageExpression": (
            f"'annotation {names.KUBESHARE_LIMIT}: ' + {_shown('limit')} +\n"
            "' must be a number above 0 and at most 1, such as 1.0.'"
        ),
    },
    {
        "expression": (
            "!(variables.requestRead && variables.limitRead) || double(variables.request) <= double(variables.limit)"
        ),
        "message": f"annotation {names.KUBESHARE_LIMIT} must be at least {names.KUBESHARE_REQUEST}.",
        "messageExpression": (
            f"'annotation {names.KUBESHARE_LIMIT}: ' + {_shown('limit')} +\n"
            f"' must be at least {names.KUBESHARE_REQUEST}, ' + {_shown('request')} + '.'"
        ),
    },
    {
        "expression": f"variables.memory == '' || variables.memory.matches('{_BYTES}')",
        "message": f"annotation {names.KUBESHARE_MEMORY} must be bytes in digits only, such as 10737418240.",
        "messageExpression": (
            f"'annotation {names.KUBESHARE_MEMORY}: ' + {_shown('memory')} +\n"
            "' must be bytes in digits only, such as 10737418240.'"
        ),
    },
    {
        "expression": f"variables.device == '' || variables.device.matches('{_DEVICE}')",
        "message": (
            f"annotation {names.KUBESHARE_GPU_ID} must be at most 64 letters, digits, dots, dashes or underscores, the "
            "first a letter or digit."
        ),
    },
    {
        "expression": (
            f"{_text_list(_TAGS)}.all(key, size(variables.annotations[?key].orValue('')) <= {MAX_TAG_LENGTH})"
        ),
        "message": f"The tags {', '.join(_TAGS)} must be at most {MAX_TAG_LENGTH} characters long.",
    },
)

# What is legal and probably not meant.


def _tag(annotation: str, typed: str) -> str:
    written = f"variables.annotations[?'{annotation}'].orValue('')"
    return f"(has(variables.gpu.{typed}) ? variables.gpu.{typed} : {written})"


def _differs(annotation: str, field: str) -> str:
    """Whether annotation and typed field are both there and say different things; both are numbers."""
    written = f"variables.annotations[?'{annotation}'].orValue('')"
    return (
        f"has(variables.gpu.{field}) && {written}.matches('{_NUMBER}') &&\n"
        f"double({written}) != double(variables.gpu.{field})"
    )


_GPU_ID: Final = f"variables.annotations[?'{names.KUBESHARE_GPU_ID}'].orValue('')"
_MEMORY: Final = f"variables.annotations[?'{names.KUBESHARE_MEMORY}'].orValue('')"

WARNINGS: Final = (
    *(
        {
            "expression": f"!({_differs(annotation, field)})",
            "message": (
                f"spec.gpu.{field} and the annotation {annotation} disagree; spec.gpu.{field} counts and the annotation "
                "is ignored."
            ),
        }
        for annotation, field in ((names.KUBESHARE_REQUEST, "request"), (names.KUBESHARE_LIMIT, "limit"))
    ),
    {
        "expression": (
            f"!(has(variables.gpu.memory) && {_MEMORY}.matches('{_BYTES}') &&\n"
            f"quantity(string(variables.gpu.memory)).compareTo(quantity({_MEMORY})) != 0)"
        ),
        "message": (
            f"spec.gpu.memory and the annotation {names.KUBESHARE_MEMORY} disagree; spec.gpu.memory counts and the "
            "annotation is ignored."
        ),
    },
    *(
        {
            "expression": (
                f"!(has(variables.gpu.{field}) && variables.annotations[?'{annotation}'].orValue('') != '' &&\n"
                f"variables.annotations['{annotation}'] != variables.gpu.{field})"
            ),
            "message": (
                f"spec.gpu.{field} and the annotation {annotation} disagree; spec.gpu.{field} counts and the annotation "
                "is ignored."
            ),
        }
        for annotation, field in (
            (names.KUBESHARE_AFFINITY, "affinity"),
            (names.KUBESHARE_ANTI_AFFINITY, "antiAffinity"),
            (names.KUBESHARE_EXCLUSION, "exclusion"),
        )
    ),
    {
        "expression": (
            f"!(has(variables.gpu.deviceIDs) && {_GPU_ID}.startsWith('GPU-') &&\n"
            f"!variables.gpu.deviceIDs.exists(id, id == {_GPU_ID}))"
        ),
        "message": (
            f"spec.gpu.deviceIDs and the annotation {names.KUBESHARE_GPU_ID} name different GPUs; no GPU is both, so the "
            "Pods will wait."
        ),
    },
    {
        "expression": "!(variables.resources && (variables.typed || variables.amounts.size() > 0))",
        "message": (
            "A GPU is asked for twice: spec.gpu and the annotations kubeshare/… count before the container resources "
            "koordinator.sh/…, field by field."
        ),
    },
    {
        "expression": (
            f"!({_tag(names.KUBESHARE_AFFINITY, 'affinity')} != '' &&\n"
            f"{_tag(names.KUBESHARE_AFFINITY, 'affinity')} == {_tag(names.KUBESHARE_ANTI_AFFINITY, 'antiAffinity')})"
        ),
        "message": (
            "affinity and antiAffinity are the same tag, so no two of these pods share a GPU: each opens one on which "
            "none of its kind is."
        ),
    },
)

# What plain Pods get.

PLAIN_GPU_POD: Final = {
    "asks-for-a-gpu": (
        f"{_text_list(names.KUBESHARE_AMOUNTS)}.exists(key, key in {_annotations('object')} &&\n"
        f"  object.metadata.annotations[key] != '') ||\n{_any_resources('object.spec')}"
    ),
    "not-made-by-an-operator": (
        f"!({IS_OPERATOR} &&\n  {_owners('object')}.exists(owner, owner.apiVersion.startsWith('{_PREFIX}')))"
    ),
}


def _dyn(value: object) -> str:
    """A JSON value as a CEL literal whose parts are all dyn, since a list of different types is none in CEL."""
    if isinstance(value, dict):
        return "dyn({" + ", ".join(f'"{key}": {_dyn(each)}' for key, each in value.items()) + "})"
    return f'dyn("{value}")'


def _env_patches(kind: str) -> str:
    return (
        f"(has(object.spec.{kind}) ? object.spec.{kind}.transformList(i, c, JSONPatch{{\n"
        f"  op: 'add', path: '/spec/{kind}/' + string(i) + '/env',\n"
        "  value: variables.env + (has(c.env) ? c.env.filter(e,\n"
        "    !(e.name in variables.names || variables.prefixes.exists(prefix, e.name.startsWith(prefix))))\n"
        "    .map(e, dyn(e)) : [])\n"
        "}) : [])"
    )


MUTATION_VARIABLES: Final = {
    "env": "[\n  " + ",\n  ".join(_dyn(entry) for entry in BACKEND_ENV["none"]) + "\n]",
    "names": _text_list(GPU_NAMES),
    "prefixes": _text_list(GPU_PREFIXES),
    "runtimeClass": "params.data[?'gpuRuntimeClassName'].orValue('').trim()",
}
MUTATION: Final = (
    f"{_env_patches('containers')} +\n{_env_patches('initContainers')} +\n"
    "(variables.runtimeClass != '' && !has(object.spec.runtimeClassName)\n"
    "  ? [JSONPatch{op: 'add', path: '/spec/runtimeClassName', value: variables.runtimeClass}] : [])"
)
