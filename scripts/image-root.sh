#!/bin/sh
# Builds what the image holds: a virtual environment with the operator, its locked dependencies, and nothing else.
#
#     scripts/image-root.sh FOLDER
#
# Everything comes from requirements/ with hashes; the downloads are kept in $WHEELS where that is set, and then a second
# run needs no network. $PYTHON (default: python3) is the interpreter that the image runs.
set -eu
root=$(mkdir -p "$1" && cd "$1" && pwd)
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
wheels=${WHEELS:-}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
[ -n "$wheels" ] || wheels=$scratch/wheels
export PIP_DISABLE_PIP_VERSION_CHECK=1

if [ ! -e "$wheels/complete" ]; then
    "$python" -m venv "$scratch/pip"
    "$scratch/pip/bin/python" -m pip download --quiet --require-hashes --only-binary :all: --dest "$wheels" \
        -r requirements/operator.txt -r requirements/build.txt
    touch "$wheels/complete"
fi

# The wheel is built beside the image, so that the tool for it stays outside.
"$python" -m venv "$scratch/build"
"$scratch/build/bin/python" -m pip install --quiet --require-hashes --no-index --find-links "$wheels" \
    -r requirements/build.txt
"$scratch/build/bin/python" -m pip wheel --quiet --no-deps --no-build-isolation --no-index --wheel-dir "$scratch/dist" .

"$python" -m venv --without-pip "$root"
install() {
    "$scratch/build/bin/python" -m pip --python "$root/bin/python" install --quiet --no-index --find-links "$wheels" "$@"
}
install --require-hashes -r requirements/operator.txt
install --no-deps "$scratch"/dist/sharepod_operator-*.whl
