# The image of a node and of the command line. Three stages: wheels, environment, image.
#
#   docker build --tag milena:0.1.0 .
#
# Arguments:
#   PYTHON_IMAGE     a slim Python 3.11 or later on Debian; pin its digest
#                    (docker.io/library/python:3.11-slim@sha256:...)
#   BUILD_IMAGE      the same with gcc and Python's headers; nothing of it stays in the image
#   MILENA_COMPILED  auto: compile the hot modules if there is a compiler; 1: fail without one; 0: do not compile
#   VERSION, REVISION, CREATED  for the labels
# For a build without network, put the wheels into build/wheelhouse first: docs/kubernetes.md says how.
ARG PYTHON_IMAGE=docker.io/library/python:3.11-slim
ARG BUILD_IMAGE=docker.io/library/python:3.11

# Only the packages that the node needs, in the versions of requirements.lock.
FROM ${BUILD_IMAGE} AS wheels
ARG MILENA_COMPILED=auto
WORKDIR /source
COPY requirements.lock build/wheelhous[e] /given/
COPY pyproject.toml build_support.py README.md LICENSE ./
COPY storage storage
COPY raft_meta raft_meta
COPY http_api http_api
COPY node node
COPY milena milena
# The node's packages are installed here, too, because mypyc reads their types.
RUN if ls /given/*.whl > /dev/null 2>&1; then export PIP_NO_INDEX=1 PIP_FIND_LINKS=/given; fi && \
    export PIP_NO_CACHE_DIR=1 PIP_CONSTRAINT=/given/requirements.lock && \
    python3 -m venv /pip && \
    /pip/bin/python -m pip wheel --wheel-dir /wheelhouse '.[node,kafka]' './node[kafka]' && \
    /pip/bin/python -m pip install /wheelhouse/*.whl mypy setuptools
# The output of this step says whether the build is pure or compiled.
RUN mkdir /extensions && \
    case "${MILENA_COMPILED}" in \
        0) echo "A PURE BUILD" ;; \
        1) /pip/bin/python build_support.py extensions /extensions ;; \
        *) /pip/bin/python build_support.py extensions /extensions || echo "A PURE BUILD" ;; \
    esac

FROM ${PYTHON_IMAGE} AS environment
COPY --from=wheels /wheelhouse /wheelhouse
COPY --from=wheels /extensions /extensions
# The image runs with a read-only root, so pip would have no use in it.
RUN python3 -m venv /opt/milena && \
    /opt/milena/bin/python -m pip install --no-cache-dir --no-index --find-links /wheelhouse 'milena-node[kafka]' && \
    cp -r /extensions/. /opt/milena/lib/python3*/site-packages/ && \
    /opt/milena/bin/python -m pip uninstall --yes pip && \
    rm -rf /opt/milena/lib/python3*/site-packages/setuptools* /opt/milena/lib/python3*/site-packages/pkg_resources

FROM ${PYTHON_IMAGE}
ARG VERSION=0.1.0
ARG REVISION=unknown
ARG CREATED=unknown
LABEL org.opencontainers.image.title="milena" \
      org.opencontainers.image.description="A partitioned, replicated, append-only log over HTTP/JSON" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.created="${CREATED}"
RUN groupadd --gid 10001 milena && \
    useradd --uid 10001 --gid 10001 --home-dir /var/lib/milena --no-create-home --shell /usr/sbin/nologin milena && \
    install --directory --owner 10001 --group 10001 --mode 0750 /var/lib/milena
COPY --from=environment /opt/milena /opt/milena
ENV PATH=/opt/milena/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
USER 10001:10001
WORKDIR /var/lib/milena
VOLUME /var/lib/milena
EXPOSE 8082 7082 9092
# Exec form: milena is process 1 and gets SIGTERM, which drains the node.
ENTRYPOINT ["milena"]
CMD ["start", "--data-dir", "/var/lib/milena/data", "--listen", "0.0.0.0:8082"]
