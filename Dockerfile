# One image for the daemon, its Spark driver and Spark's workers.
# docker build -t rebaser . && docker run --rm -e REBASER_NATS__URL=nats://nats:4222 rebaser

FROM python:3.11-slim-bookworm AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY rebaser_core rebaser_core
COPY rebaser_client rebaser_client
COPY rebaser_server rebaser_server
RUN pip install --no-cache-dir build && python -m build --wheel --outdir /dist
RUN python -m venv /opt/rebaser \
 && /opt/rebaser/bin/pip install --no-cache-dir "$(ls /dist/*.whl)[server]"

FROM python:3.11-slim-bookworm
RUN useradd --uid 10001 --create-home rebaser && install -d -o rebaser /var/lib/rebaser
COPY --from=build /opt/rebaser /opt/rebaser
ENV PATH=/opt/rebaser/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    REBASER_STORE__ROOT=/var/lib/rebaser/store \
    REBASER_SPARK__STATE=/tmp/rebaser-spark
# Spark then starts in less than half of the time: docs/spark.md
RUN rebaser train
USER rebaser
WORKDIR /var/lib/rebaser
VOLUME /var/lib/rebaser
STOPSIGNAL SIGTERM
HEALTHCHECK --start-period=90s --interval=20s --timeout=5s CMD ["python", "-c", \
  "import urllib.request; urllib.request.urlopen('http://127.0.0.1:7380/healthz', timeout=4)"]
ENTRYPOINT ["rebaser"]
CMD ["serve"]
