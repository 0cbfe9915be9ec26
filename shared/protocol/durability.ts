/** When commits of a project are confirmed: once its host has them, or once the standby has them on its disk too. */
export const DURABILITIES = ['async', 'sync'] as const;
export type Durability = (typeof DURABILITIES)[number];

/**
 * Of a primary, for its projects with the durability `sync`. `off`: it has none, or no standby that has caught up since its
 * copy; `waiting`: the standby is away, and their commits wait for it.
 */
export const SYNC_STATES = ['off', 'confirming', 'waiting'] as const;
export type SyncState = (typeof SYNC_STATES)[number];
