"""The job file: one short YAML for every platform, or the one that a user brings from ADS, Determined, DLRover or ElasticDL.

`load` reads any of them into a `schema.Job`, with notes on what could not be carried over. Runs without torch."""
