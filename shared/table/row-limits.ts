/** Spec section 8: rows of one page, ids of one deletion. */
export const ROWS_MAX = 50;
/** UTF-8 bytes of a cell that are shown. */
export const CELL_BYTES_MAX = 65_536;
