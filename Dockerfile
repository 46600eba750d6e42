# The image of a node, which is also the image of the command line. Three stages: wheels, environment, image.
#
#   docker build --tag milena:0.1.0 .
#
# Arguments: PYTHON_IMAGE, a slim Python 3.11 or later on Debian, best pinned by its digest
# (docker.io/library/python:3.11-slim@sha256:...); VERSION, REVISION and CREATED for the labels.
# Without network in the build: put the wheels into build/wheelhouse first, as docs/kubernetes.md says.
ARG PYTHON_IMAGE=docker.io/library/python:3.11-slim

# Exactly what requirements.lock pins, and of that only what the node needs.
FROM ${PYTHON_IMAGE} AS wheels
WORKDIR /source
COPY requirements.lock build/wheelhous[e] /given/
COPY pyproject.toml README.md LICENSE ./
COPY storage storage
COPY raft_meta raft_meta
COPY http_api http_api
COPY node node
COPY milena milena
RUN if ls /given/*.whl > /dev/null 2>&1; then export PIP_NO_INDEX=1 PIP_FIND_LINKS=/given; fi && \
    python3 -m venv /pip && \
    /pip/bin/python -m pip wheel --no-cache-dir --constraint /given/requirements.lock --wheel-dir /wheelhouse '.[node]'

FROM ${PYTHON_IMAGE} AS environment
COPY --from=wheels /wheelhouse /wheelhouse
# pip is of no use in an image that nobody may write to.
RUN python3 -m venv /opt/milena && \
    /opt/milena/bin/python -m pip install --no-cache-dir --no-index --find-links /wheelhouse 'milena[node]' && \
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
EXPOSE 8082 7082
# Exec form: milena is process 1 and gets SIGTERM, which drains the node.
ENTRYPOINT ["milena"]
CMD ["start", "--data-dir", "/var/lib/milena/data", "--listen", "0.0.0.0:8082"]
