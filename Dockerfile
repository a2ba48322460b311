# One image for every process of the system; the command says which one it is.
FROM python:3.11-slim AS build
WORKDIR /build
RUN python -m venv /venv
COPY requirements.lock ./
RUN /venv/bin/pip install --no-cache-dir --require-hashes -r requirements.lock
COPY pyproject.toml README.md ./
COPY feedback feedback
COPY persistence persistence
COPY barrier barrier
COPY worker worker
COPY projections projections
COPY gateway gateway
COPY app app
RUN /venv/bin/pip install --no-cache-dir --no-deps --no-build-isolation .

FROM python:3.11-slim
RUN useradd --uid 10001 --create-home --home-dir /var/lib/feedback feedback \
 && install -d -o feedback -g feedback /var/lib/feedback/store /var/lib/feedback/sessions
COPY --from=build /venv /venv
ENV PATH=/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER feedback
WORKDIR /var/lib/feedback
ENTRYPOINT ["feedback"]
CMD ["--help"]
