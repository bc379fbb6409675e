"""Kubernetes: a coordinator as a Job of one pod, which makes the worker pods; or, by `mode: indexed`, an Indexed Job.

What is sent is decided by pure functions (render); what is sent and asked goes through one door (cluster), by the
official client, which is imported only there."""

from everstep.platforms.kubernetes.platform import KubernetesPlatform

__all__ = ["KubernetesPlatform"]
