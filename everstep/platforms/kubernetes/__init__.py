"""Kubernetes: a coordinator as a Job of one pod, which makes the worker pods; or, with `mode: indexed`, an Indexed Job.

Pure functions build the objects (render); all calls go through the official client, which only `cluster` imports."""

from everstep.platforms.kubernetes.platform import KubernetesPlatform

__all__ = ["KubernetesPlatform"]
