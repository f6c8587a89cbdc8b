"""The day as a pipeline of Spark jobs, with Lisa between them; see ../README.md."""
