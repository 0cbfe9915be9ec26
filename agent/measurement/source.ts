/** A database that can be cloned. */
export interface Source {
  bytes: number;
  /** Null where they are not counted. */
  extents: number | null;
}
