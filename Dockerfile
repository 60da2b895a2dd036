# The broker in a container:  docker build -t tbmq . && docker run --name tbmq -p 1883:1883 -v tbmq:/var/lib/tbmq tbmq
#
# Whoever reaches a published port may enter until authentication is on:
#   docker exec -it tbmq tbmq credentials add ann --username ann --set data_dir=/var/lib/tbmq
#   docker exec tbmq tbmq provider enable basic --set data_dir=/var/lib/tbmq
# The volume has users, credentials and blocked clients; messages and sessions are in memory and end with the container.
# `docker stop` waits 10 s, the broker needs up to 12 with many clients: docker stop --time 15 tbmq

FROM python:3.12-slim AS build
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev
WORKDIR /src
COPY . .
RUN python -m venv /opt/tbmq && /opt/tbmq/bin/pip install --no-cache-dir ".[cluster]"

FROM python:3.12-slim
RUN useradd --system --uid 1883 tbmq && install -d -o tbmq -g tbmq /var/lib/tbmq
COPY --from=build /opt/tbmq /opt/tbmq
ENV PATH="/opt/tbmq/bin:$PATH"
USER tbmq
WORKDIR /var/lib/tbmq
VOLUME /var/lib/tbmq
# MQTT over TCP, TLS, WebSocket, WebSocket with TLS; the admin interface, which is not there yet
EXPOSE 1883 8883 8083 8084 18083
ENTRYPOINT ["tbmq"]
# By default the broker listens on loopback, which in a container nobody reaches: here the ports that are published
# decide what is open.
CMD ["serve", "--set", "data_dir=/var/lib/tbmq", \
     "--set", "listeners.tcp.bind=0.0.0.0:1883", \
     "--set", "listeners.ws.bind=0.0.0.0:8083", \
     "--set", "admin.bind=0.0.0.0:18083"]
