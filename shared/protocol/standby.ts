import { z } from 'zod';
import { Verifier } from './access.ts';
import { SYNC_STATES } from './durability.ts';
import { Id, operation } from './operation.ts';

/**
 * A host and its standby. The gateway's record of a host says which of them is the primary. An agent asks for it over
 * HTTPS before a server opens a port, by a JWT that the host's key has signed, and gets each change over the link.
 */

export const MEMBER_PATH = '/agent/v1/member';
export const STANDBY_PATH = '/agent/v1/standby';

/** `typ` of the signed requests, so that each passes as no other JWT of the host. */
export const MEMBER_TYPE = 'branchgate-member+jwt';
export const STANDBY_TYPE = 'branchgate-standby+jwt';

export const MEMBER_ROLES = ['primary', 'standby', 'fenced'] as const;
export type MemberRole = (typeof MEMBER_ROLES)[number];

/**
 * What the gateway has on record of one member. Of two records, that with the higher generation is valid. A later gateway may
 * say more, which must not end a lease.
 */
export const HostMember = z
  .object({
    /** `fenced`: another host has taken its place, and its data may have changes that are nowhere else. */
    role: z.enum(MEMBER_ROLES),
    generation: z.int().nonnegative(),
    /** A primary that is to be closed, because its standby takes its place. */
    closing: z.boolean(),
    /** Of a primary; null: none. */
    standby_id: Id.nullable(),
    /**
     * Of a primary whose standby may take its place by itself: it serves for this long after each renewal. Null: it serves
     * until it is closed.
     */
    lease_seconds: z.int().positive().nullable().default(null),
  })
  .meta({
    id: 'HostMember',
    example: { role: 'primary', generation: 1, closing: false, standby_id: null, lease_seconds: null },
  });
export type HostMember = z.output<typeof HostMember>;

/** The record with the lease that asking for it has renewed, from before the question on. */
export const MemberReply = HostMember.extend({
  /** False: no lease is needed, or none is given any more. */
  is_renewed: z.boolean().default(false),
}).meta({
  id: 'HostMemberReply',
  example: {
    role: 'primary',
    generation: 1,
    closing: false,
    standby_id: '0b0e9d4c-6a5f-4a39-9b0a-0d6f3b1f7c21',
    lease_seconds: 60,
    is_renewed: true,
  },
});

/** Whether the host closes itself when the lease has ended that the question renews, and after how many seconds by its own record. */
export const MemberClaims = z.object({
  renew: z.boolean().default(false),
  lease_seconds: z.int().positive().nullable().default(null),
});

/** The standby makes the password, which never leaves its machine. */
export const StandbyClaims = z.object({ verifier: Verifier });

/** How a standby reaches the PostgreSQL of its primary. */
export const StandbyReply = z
  .strictObject({
    generation: z.int().nonnegative(),
    db_host: z.string(),
    direct_port: z.int(),
    /** In PEM form; null: a public authority. */
    ca_certificate: z.string().nullable(),
    /** The login, and the slot of the same name. */
    login: z.string(),
  })
  .meta({
    id: 'StandbyAdmission',
    example: {
      generation: 1,
      db_host: 'eu-1.db.example.com',
      direct_port: 5432,
      ca_certificate: null,
      login: 'standby_0b0e9d4c6a5f4a399b0a0d6f3b1f7c21',
    },
  });

const Bytes = z.int().nonnegative();

/** How far a member is. */
export const MemberState = z.strictObject({
  /** Of the record that it applies. */
  generation: z.int().nonnegative(),
  /** A position in the WAL in bytes: of a primary the end, of a standby what it has replayed. Null: PostgreSQL is away. */
  position: Bytes.nullable(),
  /** Of a standby: WAL of the primary that it has not replayed. Null: the primary cannot be asked. */
  lag_bytes: Bytes.nullable(),
  /** Of a standby: the age of its data. Null: not known yet. */
  lag_seconds: z.number().nonnegative().nullable(),
  /** Of a promoted standby: everything that its former primary had confirmed until then is here. */
  survived_until: z.iso.datetime().nullable(),
  /** Of a standby that cannot ask its primary: since when, and what it knows to be missing. Null: it can, or never could. */
  unheard: z.strictObject({ seconds: z.number().nonnegative(), bytes: Bytes }).nullable(),
  sync: z.enum(SYNC_STATES),
});
export type MemberState = z.output<typeof MemberState>;

export const STANDBY_OPERATIONS = {
  'member.read': operation({
    summary: 'Report how far this member of a host and its standby is',
    params: z.strictObject({}),
    result: MemberState,
    deadline: 5_000,
    concurrent: true,
  }),

  'member.apply': operation({
    summary: 'Become what the record says: promote, close, open again or fence this host',
    params: HostMember,
    result: MemberState,
    deadline: 60_000,
  }),

  'standby.admit': operation({
    summary: 'Make the login and the slot with which a standby copies and follows this host',
    params: z.strictObject({
      standby_id: Id,
      /** From whose addresses it connects. */
      db_host: z.string().max(253),
      verifier: Verifier,
      generation: z.int().nonnegative(),
    }),
    result: z.strictObject({ login: z.string() }),
    deadline: 30_000,
  }),
} as const;
