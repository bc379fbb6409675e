"""Run the node that this container's environment (OCI__…, RANK) describes."""

import sys

import pytorch_cluster

from everstep.cli.main import main

if __name__ == "__main__":
    pytorch_cluster.prepare()
    sys.argv[1:1] = ["entry"]
    main()
