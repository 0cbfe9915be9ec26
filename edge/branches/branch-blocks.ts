import { z } from 'zod';
import { BlockReason, type BranchBlock } from '../../shared/block.ts';

/** A block as the branch's record stores it. */
export type StoredBlock = Omit<BranchBlock, 'branch_id'>;

/** The block that a record shows: of the whole branch, whatever address a client connects from. */
export const Blocked = z
  .strictObject({
    reason: BlockReason.exclude(['attempts']).meta({
      description: 'What its sessions took too much of.',
      example: 'disk',
    }),
    until: z.iso.datetime(),
  })
  .nullable();
type Blocked = z.output<typeof Blocked>;

/** Blocks end by themselves, so that a lost notification of their end has no effect. */
const inForce = (blocks: readonly StoredBlock[], now: number) =>
  blocks.filter(({ until }) => Date.parse(until) > now);

/** The block in force that lasts longest; null if there is none. */
export function blockedOf(blocks: readonly StoredBlock[], now = Date.now()): Blocked {
  const ofBranch = inForce(blocks, now).flatMap(({ reason, until }) =>
    reason === 'attempts' ? [] : [{ reason, until }],
  );
  return ofBranch.reduce<Blocked>(
    (longest, block) => (longest && Date.parse(longest.until) >= Date.parse(block.until) ? longest : block),
    null,
  );
}

/** Until when connections are refused because of too many attempts; null if they are not. */
export const connectionsBlockedUntil = (blocks: readonly StoredBlock[], now = Date.now()): string | null =>
  inForce(blocks, now).find(({ reason }) => reason === 'attempts')?.until ?? null;
