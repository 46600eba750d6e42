"""A node's HTTP surface as the client sees it, over plain dictionaries; for tests of the client."""

from aiohttp import web


class FakeApi:
    """Three nodes on paper. Tests change ``brokers`` and ``topics`` and read ``requests``."""

    def __init__(self):
        self.brokers = [self.broker(i) for i in (1, 2, 3)]
        self.controller_id = 1
        self.topics = {}
        self.requests = []
        self.answer = None
        """(status, body) given to every request instead of the real one."""

    @staticmethod
    def broker(node_id, *, is_fenced=False):
        return {
            "broker_id": node_id,
            "url": f"http://127.0.0.1:{8081 + node_id}",
            "rack": None,
            "is_fenced": is_fenced,
            "is_draining": False,
        }

    def add_topic(
        self, name, *, partitions=1, replicas=(1, 2, 3), isr=None, leader=1, configs=None
    ):
        self.topics[name] = {
            "name": name,
            "configs": configs or {},
            "partitions": [
                {
                    "partition": p,
                    "leader": leader,
                    "leader_epoch": 4,
                    "replicas": list(replicas),
                    "isr": list(replicas if isr is None else isr),
                }
                for p in range(partitions)
            ],
        }

    def app(self):
        app = web.Application(middlewares=[self._note])
        app.add_routes(
            [
                web.get("/metadata", self._metadata),
                web.get("/topics", self._names),
                web.get("/topics/{t}", self._topic),
                web.get("/topics/{t}/partitions/{p}/offsets", self._offsets),
                web.get("/v3/clusters", self._clusters),
                web.post("/v3/clusters/{c}/topics", self._create),
                web.delete("/v3/clusters/{c}/topics/{t}", self._delete),
            ]
        )
        return app

    @web.middleware
    async def _note(self, request, handler):
        self.requests.append((request.method, request.path, await request.text()))
        if self.answer is not None:
            status, body = self.answer
            if isinstance(body, str):
                return web.Response(status=status, text=body)
            return web.json_response(body, status=status)
        return await handler(request)

    async def _metadata(self, request):
        return web.json_response(
            {
                "version": 17,
                "cluster_id": "c1",
                "controller_id": self.controller_id,
                "brokers": self.brokers,
                "topics": list(self.topics.values()),
            }
        )

    async def _names(self, request):
        return web.json_response(list(self.topics))

    async def _clusters(self, request):
        return web.json_response({"data": [{"cluster_id": "c1"}]})

    async def _topic(self, request):
        topic = self.topics.get(request.match_info["t"])
        if topic is None:
            return self._missing(request)
        partitions = [
            {
                "partition": p["partition"],
                "leader": -1 if p["leader"] is None else p["leader"],
                "replicas": [
                    {"broker": r, "leader": r == p["leader"], "in_sync": r in p["isr"]}
                    for r in p["replicas"]
                ],
            }
            for p in topic["partitions"]
        ]
        return web.json_response({**topic, "partitions": partitions})

    async def _offsets(self, request):
        return web.json_response({"beginning_offset": 5, "end_offset": 42})

    async def _create(self, request):
        body = await request.json()
        if body["topic_name"] in self.topics:
            message = f"Topic '{body['topic_name']}' already exists."
            return web.json_response({"error_code": 40002, "message": message}, status=400)
        configs = {c["name"]: c["value"] for c in body["configs"]}
        self.add_topic(
            body["topic_name"], partitions=body.get("partitions_count", 1), configs=configs
        )
        return web.json_response({}, status=201)

    async def _delete(self, request):
        if self.topics.pop(request.match_info["t"], None) is None:
            return self._missing(request)
        return web.Response(status=204)

    def _missing(self, request):
        message = f"Topic '{request.match_info['t']}' does not exist."
        return web.json_response({"error_code": 40403, "message": message}, status=404)
