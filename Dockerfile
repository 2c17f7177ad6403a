# One small image: the ext_proc server, and the simulated engines of docker-compose.yml. Runs as nobody in particular.
#
#   docker build -t smetric-extproc .
#   docker run -v ./envoy:/etc/smetric/envoy:ro smetric-extproc check envoy/envoy.yaml
#
# BASE is any image with Python 3.11 or newer (venv and ensurepip included) as `python3`.
ARG BASE=python:3.11-slim

FROM ${BASE} AS build
WORKDIR /src
RUN python3 -m venv /opt/smetric
# What changes least comes first: the libraries are a layer of their own.
COPY pyproject.toml constraints.txt ./
RUN python3 -c "import tomllib; p = tomllib.load(open('pyproject.toml', 'rb'))['project']; \
        print(*p['dependencies'], *p['optional-dependencies']['loadgen'], sep='\n')" > requirements.txt \
    && /opt/smetric/bin/pip install --no-cache-dir --no-compile -c constraints.txt -r requirements.txt
COPY README.md LICENSE ./
COPY extproc extproc
COPY loadgen loadgen
RUN /opt/smetric/bin/pip install --no-cache-dir --no-compile --no-deps . \
    && /opt/smetric/bin/pip uninstall -q -y pip setuptools

FROM ${BASE}
COPY --from=build /opt/smetric /opt/smetric
ENV PATH=/opt/smetric/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
WORKDIR /etc/smetric
USER 10001:10001
EXPOSE 9002 9003 9090
# What Envoy's own health check asks, from within.
HEALTHCHECK --interval=10s --timeout=5s --start-period=20s CMD ["python", "-c", "import sys, grpc\n\
from grpc_health.v1 import health_pb2 as health, health_pb2_grpc as rpc\n\
stub = rpc.HealthStub(grpc.insecure_channel('127.0.0.1:9003'))\n\
sys.exit(stub.Check(health.HealthCheckRequest(service='readiness'), timeout=3).status != health.HealthCheckResponse.SERVING)"]
# Without this, SIGTERM drains for 30 s and Docker kills after 10: give it `stop_grace_period` (docker-compose.yml).
STOPSIGNAL SIGTERM
ENTRYPOINT ["python", "-m", "extproc"]
CMD ["serve", "--envoy-yaml", "envoy/envoy.yaml", \
     "--listen", "0.0.0.0:9002", "--health", "0.0.0.0:9003", "--metrics", "0.0.0.0:9090"]
