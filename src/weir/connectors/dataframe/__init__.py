"""A bounded Spark DataFrame as a source."""
