# The operator's image. It runs as nobody, on a read-only root, and fetches nothing when it runs.
#
#     docker build -t registry.example/sharepod-operator:0.1.0 .
#
# The base is pinned by digest, the dependencies by hash (requirements/). Renewing the base is a change of this one line.
ARG PYTHON_IMAGE=python:3.11.16-slim-bookworm@sha256:528257d48c1da0dcecc2e725d1ae34498d60c965f1241e39cd6a85a8859bdf84

FROM ${PYTHON_IMAGE} AS build
WORKDIR /src
COPY requirements/operator.txt requirements/build.txt requirements/
COPY pyproject.toml README.md LICENSE ./
COPY scripts/image-root.sh scripts/
COPY crds crds
COPY examples examples
COPY sharepod_operator sharepod_operator
RUN scripts/image-root.sh /opt/sharepod

FROM ${PYTHON_IMAGE}
COPY --from=build /opt/sharepod /opt/sharepod
ENV PATH=/opt/sharepod/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
USER 65532:65532
WORKDIR /
EXPOSE 8080
ENTRYPOINT ["sharepod"]
CMD ["operator"]
