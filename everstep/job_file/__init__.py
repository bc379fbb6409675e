"""The job file: one short YAML for every platform, or the one that a user brings from another system.

`load` reads ours and those of ADS, Determined, DLRover and ElasticDL into a `schema.Job`, with notes on what could not
be carried over. Runs without torch."""
