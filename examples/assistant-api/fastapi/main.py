"""The assistant API in FastAPI: requests, concurrency and dollars are limited per user, organisation and in total.

Run it with `uvicorn --app-dir examples/assistant-api/fastapi main:app`. LIMITER_URL is the address of Sluicegate
(default http://127.0.0.1:8080).
"""

import os
from typing import Annotated, Any, Optional

from fastapi import Depends, FastAPI, Header, Request
from pydantic import BaseModel
from sluicegate import AsyncLimiter, Cost
from sluicegate.asgi import request_limits
from sluicegate.fastapi import install, rate_limit

ANSWER_TOKENS_MAX = 500
CONTEXT_TOKENS = 856

# Availability matters more than limits here: while the limiter does not answer, questions are answered without
# limits, and GET /limiter counts them.
limiter = AsyncLimiter(os.environ.get("LIMITER_URL"), on_unavailable="open")
app = FastAPI(title="Assistant API")
install(app, limiter)


class Question(BaseModel):
    question: str

    @property
    def tokens(self) -> int:
        return len(self.question.split())


def caller(x_user_id: Annotated[str, Header()], x_org_id: Annotated[Optional[str], Header()] = None) -> dict[str, str]:
    organisation = {"orgId": x_org_id} if x_org_id else {}
    return {"userId": x_user_id, "modelId": "assistant", **organisation}


def estimate(question: Question) -> Cost:
    return Cost(input_tokens=question.tokens + CONTEXT_TOKENS, max_output_tokens=ANSWER_TOKENS_MAX)


@app.post("/ask", dependencies=[Depends(rate_limit(limiter, caller, cost=estimate, hold=60))])
async def ask(question: Question, request: Request) -> dict[str, Any]:
    answer, output_tokens = model(question.question)
    cost = Cost(query_tokens=question.tokens, context_tokens=CONTEXT_TOKENS, output_tokens=output_tokens)
    metadata = await request_limits(request).settle(cost)
    return {"answer": answer, "metadata": metadata}


@app.get("/users/{user}/usage")
async def usage(user: str) -> dict[str, Any]:
    return await limiter.get_user_stats(user)


@app.get("/limiter")
async def limiter_state() -> dict[str, int]:
    return {"failed_open": limiter.stats.failed_open, "unsettled": limiter.stats.unsettled}


def model(question: str) -> tuple[str, int]:
    """Placeholder for a call of a real model."""
    return f"You asked: {question}", 145
