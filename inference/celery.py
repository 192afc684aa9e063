"""The workers' Celery app, the settings both Celery apps share, and the two messages sent through it. No task bodies.

A message here is a doorbell or a nudge, never the truth: one that is lost is sent again by the sweeper, one that comes
twice does nothing. So tasks are acknowledged early, results are not kept, and a broker that cannot be reached fails the
sender within seconds instead of holding it. Workers start it with `-A inference.celery`; any thread may send.
"""

from __future__ import annotations

from uuid import UUID

from celery import Celery
from kombu.exceptions import OperationalError

from inference.config import InferenceConfig, load
from inference.coordination import redis_keys
from inference.coordination.redis_client import ANSWER_SECONDS, CONNECT_SECONDS, HEALTH_CHECK_SECONDS, UNAVAILABLE
from inference.errors import StoreUnavailable

GENERATE_TASK = "inference.generate"
RECORD_TASK = "chat.record"
SITE_QUEUE = redis_keys.SITE_QUEUE

# One more try at once, for the pooled connection that died while it was idle.
PUBLISH_RETRY_POLICY = {"max_retries": 1, "interval_start": 0.0, "interval_step": 0.1, "interval_max": 0.1}


def configure(app: Celery, config: InferenceConfig, side: str = "generate") -> Celery:
    """Set on `app` all that workers and site have in common. `side`: whose it is, `generate` or `site`; what one has
    taken the other need not reach. Returns `app`."""
    app.conf.update(
        broker_url=config.redis_url,
        broker_transport_options={
            "global_keyprefix": redis_keys.CELERY_PREFIX,
            "unacked_key": redis_keys.unacked(side),
            "unacked_index_key": f"{redis_keys.unacked(side)}.index",
            "unacked_mutex_key": f"{redis_keys.unacked(side)}.mutex",
            "socket_connect_timeout": CONNECT_SECONDS,
            "socket_timeout": ANSWER_SECONDS,
            "socket_keepalive": True,
            "health_check_interval": HEALTH_CHECK_SECONDS,
            "max_retries": 1,
            "interval_start": 0.0,
            "interval_step": 0.1,
            "interval_max": 0.1,
        },
        broker_connection_timeout=CONNECT_SECONDS,
        broker_connection_retry=True,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_pool_limit=10,
        task_publish_retry=True,
        task_publish_retry_policy=PUBLISH_RETRY_POLICY,
        task_serializer="json",
        accept_content=["json"],
        result_accept_content=["json"],
        result_backend=None,
        task_ignore_result=True,
        task_store_errors_even_if_ignored=False,
        task_acks_late=False,
        task_create_missing_queues=True,
        task_send_sent_event=False,
        worker_send_task_events=False,
        worker_disable_prefetch=True,
        worker_prefetch_multiplier=1,
        worker_enable_remote_control=False,
        worker_cancel_long_running_tasks_on_connection_loss=False,
        worker_hijack_root_logger=False,
        enable_utc=True,
    )
    return app


def producer(config: InferenceConfig) -> Celery:
    """An app that only sends, for a client whose settings are not the process's own."""
    return configure(Celery("smolfleet-client", set_as_current=False, fixups=()), config)


# No fixups: beside the site on one machine, Celery would import all of Django into a GPU worker.
app = configure(Celery("smolfleet-worker", set_as_current=False, include=["inference.worker.tasks"], fixups=()), load())


def ring(model: str, *, app: Celery = app) -> None:
    """Tell the workers of `model` that someone waits.

    Raises:
        StoreUnavailable: the broker did not take it in time; the sweeper rings again.
    """
    _send(app, GENERATE_TASK, model, redis_keys.queue(model))


def send_record(generation_id: UUID, *, app: Celery = app) -> None:
    """Ask the site worker to store an answer that has finished.

    Raises:
        StoreUnavailable: the broker did not take it in time; the sweeper finds the finish in the log.
    """
    _send(app, RECORD_TASK, str(generation_id), SITE_QUEUE)


def _send(app: Celery, task: str, argument: str, queue: str) -> None:
    try:
        app.send_task(task, args=[argument], queue=queue, ignore_result=True)
    except (OperationalError, OSError, *UNAVAILABLE) as error:
        raise StoreUnavailable(f"The broker cannot be reached: {error}") from error
