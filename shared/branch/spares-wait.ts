/** Why a project has fewer spares than were asked for. */
export const SPARES_WAITS = {
  making: 'The host makes them one after another.',
  use: 'No branch was made of a snapshot of the project in the last ten minutes.',
  clients: 'Clients of the host work, so it makes one and then rests.',
  unused: 'Spares that nobody took were dropped, so the host makes one every five seconds.',
  room: 'The disk of the host was short, so it makes none for a minute.',
  files: 'The snapshot has more than 2,000 files.',
  limit: 'The tenant or the host has as many as it may have.',
  reflink: 'Clones of this host share no blocks, so it makes none.',
  host: 'The host does not answer.',
} as const;
export type SparesWait = keyof typeof SPARES_WAITS;
