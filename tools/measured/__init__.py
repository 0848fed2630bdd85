"""The tables of measurements in cudnnpy/_planning/tables: made from exports of tuned stores, and judged."""
