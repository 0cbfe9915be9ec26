import { z } from 'zod';
import {
  DEFAULT_CONNECTION_ATTEMPTS,
  HIGHEST_CONNECTION_ATTEMPTS,
} from '../shared/branch/connection-attempts.ts';
import { UNDELETE_DAYS_MAX } from '../shared/limits.ts';
import { HIGHEST_BRANCH_LIMIT } from '../shared/project/project-status.ts';
import { faultsOf } from '../shared/setting-range.ts';

const KEY_BYTES = 32;

const Count = z.coerce.number().int().min(1);

/** `id:base64 of 32 bytes`, comma-separated. */
const Keys = z
  .string()
  .transform((text) =>
    text.split(',').map((entry) => {
      const [id = '', encoded = ''] = entry.trim().split(':');
      return { id, bytes: Uint8Array.from(atob(encoded), (c) => c.charCodeAt(0)) };
    }),
  )
  .refine((keys) => keys.every((key) => key.id !== '' && key.bytes.length === KEY_BYTES))
  .meta({ form: `id:base64 of ${KEY_BYTES} bytes, comma-separated` });

const DAY_SECONDS = 86_400;
const SNAPSHOTS_MAX = 200;
const RETENTION_DAYS_MAX = 3650;
const DEFAULT_EXPIRED_RETENTION_SECONDS = 7 * DAY_SECONDS;
const EXPIRED_RETENTION_MAX_SECONDS = 30 * DAY_SECONDS;

const Origin = z
  .url()
  .refine((url) => new URL(url).origin === url)
  .meta({ form: 'URL without a path' });

/** A name or an address, with a port if it is not the standard one. */
const Host = z
  .string()
  .refine((host) => URL.canParse(`http://${host}`) && new URL(`http://${host}`).host === host)
  .meta({ form: 'name, with a port if need be' });

const AUTO_PROMOTE_SECONDS_MIN = 60;

const Settings = z.object({
  /** `<service>` of the specification, for instance in the scopes `<service>:read` and `<service>:write`. */
  SERVICE_NAME: z
    .string()
    .regex(/^[a-z][a-z0-9_-]*$/)
    .meta({ form: 'lowercase letters, digits, - and _' })
    .default('branchgate'),
  /**
   * `{base_url}` of the specification, without a path: the redirect target of the provider and the issuer of
   * own tokens.
   */
  BASE_URL: Origin,
  /**
   * Further names of the gateway that are reached over one family of addresses only. Clients find their
   * address of the other family with them.
   */
  IPV4_HOST: Host.optional(),
  IPV6_HOST: Host.optional(),
  /**
   * Who can have an account here: everyone who reads mails of an address (`open`), people who are invited
   * (`invited`), or of the invited only addresses of a tenant's verified domains (`off`). The operator's
   * invitation of a first owner is always valid.
   */
  SIGN_UP: z.enum(['open', 'invited', 'off']).default('invited'),
  /** Lifetime of a session at a company's provider that gives no refresh token. */
  SSO_SESSION_SECONDS: Count.default(43_200),
  /** Lifetime of any other session at a company's provider, however often it is renewed. */
  SSO_SESSION_MAX_SECONDS: Count.default(2_592_000),
  /** Resolver of the TXT records that verify domains: DNS over HTTPS with JSON responses. */
  DNS_OVER_HTTPS_URL: z.url().default('https://cloudflare-dns.com/dns-query'),
  /** GitHub, or a GitHub Enterprise Server, for providers of the kind `github`. */
  GITHUB_URL: Origin.default('https://github.com'),
  GITHUB_API_URL: z
    .url()
    .transform((url) => url.replace(/\/$/, ''))
    .default('https://api.github.com'),
  /** Lists of networks that rules can name: one network a line, and GitHub's `meta` with the field `actions`. */
  CLOUDFLARE_NETWORKS_URLS: z
    .string()
    .default('https://www.cloudflare.com/ips-v4,https://www.cloudflare.com/ips-v6')
    .transform((text) => text.split(',').map((url) => url.trim()))
    .pipe(z.array(z.url()).min(1))
    .meta({ form: 'URLs, comma-separated' }),
  GITHUB_META_URL: z.url().default('https://api.github.com/meta'),
  /**
   * Base URL of the identity provider that issues PASETO tokens, which is also their issuer. Without it there
   * are only the gateway's own sessions.
   */
  IDP_URL: z.url().optional(),
  /** URL of the provider's Ed25519 keys; default `{IDP_URL}/v1/keys/paseto-v4-public`. */
  BASE_IDP_KEY_ENDPOINT: z.url().optional(),
  /** OAuth clients at the provider: for browsers (`IDP_CLIENT_SECRET` is a secret) and for command lines. */
  IDP_CLIENT_ID: z.string().min(1).default('branchgate-gateway'),
  IDP_CLIENT_SECRET: z.string().min(1).optional(),
  IDP_CLI_CLIENT_ID: z.string().min(1).default('branchgate-cli'),
  /** Whether passwords of unknown accounts are tried at the provider (`grant_type=password`). */
  IDP_PASSWORD_GRANT: z.stringbool().meta({ form: 'true or false' }).default(false),
  /**
   * For users without a second factor: no enrolment, an offer to enrol after a password, or mandatory
   * enrolment.
   */
  TWO_FACTOR: z.enum(['off', 'prompt', 'required']).default('prompt'),
  /** Secret. Keys of own tokens: `id:base64 of 32 bytes`, comma-separated, the first signs. */
  JWT_KEYS: Keys,
  /**
   * Binary logarithm of scrypt's N for new passwords (RFC 7914 section 2): one more doubles time and memory.
   */
  PASSWORD_COST: z.coerce.number().int().min(10).max(16).default(15),
  JWT_ACCESS_TTL_SECONDS: Count.default(900),
  JWT_REFRESH_TTL_SECONDS: Count.default(604_800),
  /** Secret. Keys that seal passwords: `id:base64 of 32 bytes`, comma-separated, the first seals. */
  CREDENTIAL_KEYS: Keys,
  /**
   * With a token (a secret) that may edit the DNS records of this zone of Cloudflare, hosts whose names are in
   * it get certificates by ACME.
   */
  DNS_API_TOKEN: z.string().min(1).optional(),
  DNS_ZONE_ID: z.string().regex(/^\w+$/).meta({ form: 'letters and digits' }).optional(),
  DNS_API_URL: z.url().default('https://api.cloudflare.com/client/v4'),
  /**
   * With the token and the zone: each project of a host whose certificate covers `*.<DB_DOMAIN>` has a name in this
   * domain. Not set: connection URLs show the address of the host.
   */
  DB_DOMAIN: z
    .hostname()
    .max(190)
    .toLowerCase()
    .meta({ form: 'domain of at most 190 characters' })
    .optional(),
  /** How long resolvers may keep these names. Cloudflare accepts 30 to 59 for Enterprise zones only. */
  DB_DOMAIN_TTL_SECONDS: Count.min(30).max(DAY_SECONDS).default(60),
  /** Secret. Bearer of the platform routes (enrolling hosts). At least 32 characters. */
  PLATFORM_SECRET: z.string().min(32).meta({ form: 'text of at least 32 characters' }),
  /**
   * GET and HEAD requests a minute for one project, or for a tenant outside its projects (specification 8).
   */
  LIMIT_READS_PER_MINUTE: Count.default(1000),
  /** Requests with other methods, counted separately. */
  LIMIT_WRITES_PER_MINUTE: Count.default(200),
  /** Requests of SQL over HTTP a minute for one branch, which are in neither of the two. */
  LIMIT_SQL_PER_MINUTE: Count.default(3000),
  /**
   * Requests of one client address on public routes; failed authentications have the same limit, counted
   * separately.
   */
  LIMIT_PUBLIC_PER_MINUTE: Count.default(60),
  /**
   * Projects of a tenant, and GiB of their storage quotas together; the platform route of a tenant's caps
   * overrides them.
   */
  TENANT_PROJECT_LIMIT: Count.default(10),
  TENANT_QUOTA_LIMIT_GIB: z.coerce.number().positive().default(20),
  /** The same for tenants that a sign-up made, because anyone can sign up. */
  SELF_SIGNUP_PROJECT_LIMIT: Count.default(3),
  SELF_SIGNUP_QUOTA_LIMIT_GIB: z.coerce.number().positive().default(1),
  /**
   * What counts against a storage quota: the sizes of the branches (`logical`, specification 3.2), or what
   * they take of the disk together, where hosts can measure it (`physical`).
   */
  STORAGE_ACCOUNTING: z.enum(['logical', 'physical']).default('logical'),
  /** What the storage quotas on a host may promise, as a multiple of its free disk. */
  STORAGE_OVERCOMMIT: z.coerce.number().positive().default(1),
  /**
   * How long an expired branch can be revived before it is deleted. Until then, it counts against the limit
   * of branches and the storage quota.
   */
  EXPIRED_RETENTION_SECONDS: Count.max(EXPIRED_RETENTION_MAX_SECONDS).default(
    DEFAULT_EXPIRED_RETENTION_SECONDS,
  ),
  /**
   * How long the database of a deleted branch is kept, so that the branch can be restored; 0: it is dropped.
   */
  UNDELETE_SECONDS: z.coerce
    .number()
    .int()
    .min(0)
    .max(UNDELETE_DAYS_MAX * DAY_SECONDS)
    .default(DAY_SECONDS),
  /**
   * After so many days, audit events that the operator has exported are deleted. Not set: they stay.
   */
  AUDIT_RETENTION_DAYS: Count.max(RETENTION_DAYS_MAX).optional(),
  /**
   * After so many days, ended jobs are deleted, and the records of deleted branches that the exported audit log has. Not
   * set: they stay.
   */
  HISTORY_RETENTION_DAYS: Count.max(RETENTION_DAYS_MAX).optional(),
  /** Snapshots of a project that its users or its schedule take. */
  SNAPSHOT_LIMIT: Count.max(SNAPSHOTS_MAX).default(30),
  /**
   * Leased branches that a project may have on top of its branch limit, which specification 8 does not allow
   * (`docs/short-lived-branches.md`); the platform route of a project's caps overrides it.
   */
  LEASED_BRANCH_LIMIT: z.coerce.number().int().min(0).max(HIGHEST_BRANCH_LIMIT).default(0),
  /** The highest number of connection attempts a minute that users may choose for a branch. */
  CONNECTION_ATTEMPTS_MAX: Count.min(DEFAULT_CONNECTION_ATTEMPTS)
    .max(HIGHEST_CONNECTION_ATTEMPTS)
    .default(2000),
  /** The highest limits of branches that the platform route accepts (specification 8: 20), and of leased ones on top. */
  BRANCH_LIMIT_MAX: Count.max(HIGHEST_BRANCH_LIMIT).default(20),
  /**
   * After so many seconds without its primary, a standby takes its place by itself. A primary that cannot renew its lease for
   * two thirds of them closes itself before. Not set: only an operator promotes.
   */
  AUTO_PROMOTE_SECONDS: Count.max(DAY_SECONDS)
    .meta({ form: `integer from ${AUTO_PROMOTE_SECONDS_MIN} to ${DAY_SECONDS}` })
    .optional(),
  /**
   * Seconds between two measurements of a project (specification 8); must equal the setting of the agents.
   */
  MEASURE_INTERVAL_SECONDS: z.coerce.number().positive().default(60),
  /** URL that takes each e-mail as one JSON POST; without it no e-mail is sent. */
  MAIL_API_URL: z.url().optional(),
  /** Secret. Bearer token for the mail service. */
  MAIL_API_KEY: z.string().min(1).optional(),
  MAIL_FROM: z.string().min(1).default('branchgate <no-reply@localhost>'),
  /** Recipient of storage warnings (specification 6). */
  ALERT_EMAIL: z.string().min(3).meta({ form: 'e-mail address' }).optional(),
  /** Ports that the URLs of webhooks may use, comma-separated. */
  WEBHOOK_PORTS: z
    .string()
    .default('443')
    .transform((text) => text.split(',').map(Number))
    .pipe(z.array(z.int().min(1).max(65_535)))
    .meta({ form: 'ports from 1 to 65535, comma-separated' }),
  /** Origins that may call the API from a browser, comma-separated; default none. */
  CORS_ORIGINS: z
    .string()
    .default('')
    .transform((text) => text.split(',').map((origin) => origin.trim()))
    .pipe(z.array(z.union([z.literal(''), Origin])))
    .transform((origins) => origins.filter((origin) => origin !== ''))
    .meta({ form: 'URLs without a path, comma-separated' }),
});

export type Settings = z.output<typeof Settings>;

/** By name, for messages and for the table of `docs/operating.md`. */
export const SETTINGS: Readonly<Record<string, z.ZodType>> = Settings.shape;

/** The message names the missing or invalid settings with what they accept, and never their values. */
export class InvalidSettings extends Error {
  override readonly name = 'InvalidSettings';
}

/** Not after seconds, except in a local stack. */
const isPatient = ({ AUTO_PROMOTE_SECONDS: seconds, BASE_URL }: Settings) =>
  seconds === undefined || seconds >= AUTO_PROMOTE_SECONDS_MIN || new URL(BASE_URL).hostname === '127.0.0.1';
const CheckedSettings = Settings.refine(isPatient, { path: ['AUTO_PROMOTE_SECONDS'] });

const parsedSettings = new WeakMap<object, Settings>();

/**
 * Settings of this isolate, parsed once.
 * @throws InvalidSettings
 */
export function readSettings(env: object): Settings {
  const known = parsedSettings.get(env);
  if (known) return known;
  const parsed = CheckedSettings.safeParse(env);
  if (!parsed.success) throw new InvalidSettings(faultsOf(SETTINGS, parsed.error));
  const { IDP_URL, BASE_IDP_KEY_ENDPOINT = IDP_URL && `${IDP_URL}/v1/keys/paseto-v4-public` } = parsed.data;
  const settings = { ...parsed.data, BASE_IDP_KEY_ENDPOINT };
  parsedSettings.set(env, settings);
  return settings;
}
