# One image for every process of the system; the command says which one it is.
FROM python:3.11-slim AS build
WORKDIR /build
# Everything of the lock is fetched by its hash; from then on nothing comes from anywhere else.
COPY requirements.lock ./
RUN python -m venv /tools \
 && /tools/bin/pip download --no-cache-dir --only-binary :all: --require-hashes -r requirements.lock -d /wheels \
 && /tools/bin/pip install --no-cache-dir --no-index --find-links /wheels hatchling
COPY pyproject.toml README.md ./
COPY feedback feedback
COPY persistence persistence
COPY barrier barrier
COPY worker worker
COPY projections projections
COPY gateway gateway
COPY app app
# Only what runs goes into /venv: no compiler, no pip, nothing of the tests.
RUN /tools/bin/pip wheel --no-cache-dir --no-deps --no-index --no-build-isolation -w /wheels . \
 && python -m venv --without-pip /venv \
 && /tools/bin/pip --python /venv/bin/python install --no-cache-dir --no-index --find-links /wheels \
      'session-feedback[postgres,tracing,gateway,parquet]'

FROM python:3.11-slim
# The account has no name in a cluster, so it is a number. The base image's own installer is not needed any more.
RUN useradd --uid 10001 --no-create-home --home-dir /var/lib/feedback --shell /usr/sbin/nologin feedback \
 && install -d -o 10001 -g 10001 /var/lib/feedback /var/lib/feedback/store /var/lib/feedback/tokens /var/lib/feedback/sessions \
 && python -m pip uninstall -y --root-user-action ignore pip
COPY --from=build /venv /venv
ENV PATH=/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
WORKDIR /var/lib/feedback
ENTRYPOINT ["feedback"]
CMD ["--help"]
