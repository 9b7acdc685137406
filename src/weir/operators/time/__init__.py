"""How far event time has come: watermarks made of rows, and processing time as a time of rows."""
