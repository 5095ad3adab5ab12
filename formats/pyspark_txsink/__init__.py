"""The Spark plug-in's place: Spark looks for data sources in packages of this name. Empty until it is built."""
