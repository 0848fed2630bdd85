"""The tables of measurements in cudnnpy/_planning/tables: how they are made of a survey's rows, and how they are judged."""
