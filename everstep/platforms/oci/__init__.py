"""Data Science jobs of Oracle Cloud Infrastructure: one Job, and a job run for each node (or one for all of them).

Submits what ADS submits, so that its images accept it; our images find the order of the job beside it.
Nothing here needs the SDK before something is sent."""

from everstep.platforms.oci.platform import OciPlatform

__all__ = ["OciPlatform"]
