"""Files as a source and as an exactly-once sink: splits, readers, part files that appear once."""
