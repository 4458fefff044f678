"""Load test of the assistant API: 100 users, 10 more per second, who think for 1 to 3 seconds between questions.

    locust -f examples/assistant-api/fastapi/locustfile.py --headless -u 100 -r 10 -t 1m -H http://127.0.0.1:8000
"""

import itertools

from locust import HttpUser, between, task

_numbers = itertools.count(1)


class Reader(HttpUser):
    wait_time = between(1, 3)

    def on_start(self) -> None:
        self.headers = {"x-user-id": f"reader-{next(_numbers)}"}

    @task
    def ask(self) -> None:
        body = {"question": "How exactly does a limiter decide when two callers come at once?"}
        with self.client.post("/ask", json=body, headers=self.headers, catch_response=True) as answer:
            # A denial is a correct answer if it says when to come back.
            if answer.status_code == 429 and int(answer.headers.get("retry-after", 0)) > 0:
                answer.success()
            elif answer.status_code != 200 or "x-ratelimit-remaining" not in answer.headers:
                answer.failure(f"{answer.status_code} {answer.text[:200]}")
