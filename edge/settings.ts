import { z } from 'zod';

const KEY_BYTES = 32;

const Count = z.coerce.number().int().positive();

/** `id:base64 of 32 bytes`, comma-separated. */
const Keys = z
  .string()
  .transform((text) =>
    text.split(',').map((entry) => {
      const [id = '', encoded = ''] = entry.trim().split(':');
      return { id, bytes: Uint8Array.from(atob(encoded), (c) => c.charCodeAt(0)) };
    }),
  )
  .refine((keys) => keys.every((key) => key.id !== '' && key.bytes.length === KEY_BYTES));

const Settings = z.object({
  /** Stands for `<service>` of the specification: scopes `<service>:read`, `<service>:write`. */
  SERVICE_NAME: z
    .string()
    .regex(/^[a-z][a-z0-9_-]*$/)
    .default('branchgate'),
  /** `{base_url}` of the specification, without a path: where the provider sends people back to; issuer of own tokens. */
  BASE_URL: z.url().refine((url) => new URL(url).origin === url),
  /** Base address of the identity provider; the issuer its users are known by. */
  IDP_URL: z.url(),
  /** Where the provider's Ed25519 keys are; default `{IDP_URL}/v1/keys/paseto-v4-public`. */
  BASE_IDP_KEY_ENDPOINT: z.url().optional(),
  /** Clients at the provider: for people in a browser (`IDP_CLIENT_SECRET` is a secret), and for command lines. */
  IDP_CLIENT_ID: z.string().min(1).default('branchgate-gateway'),
  IDP_CLIENT_SECRET: z.string().min(1).optional(),
  IDP_CLI_CLIENT_ID: z.string().min(1).default('branchgate-cli'),
  /** Whether passwords that no account of ours has are tried at the provider (`grant_type=password`). */
  IDP_PASSWORD_GRANT: z.stringbool().default(false),
  /** Second factor of those who have none: never asked for, offered after a password, or demanded. */
  TWO_FACTOR: z.enum(['off', 'prompt', 'required']).default('prompt'),
  /** Secret. Keys of own tokens: `id:base64 of 32 bytes`, comma-separated, the first signs. */
  JWT_KEYS: Keys,
  JWT_ACCESS_TTL_SECONDS: Count.default(900),
  JWT_REFRESH_TTL_SECONDS: Count.default(604_800),
  /** Secret. Keys that seal passwords: `id:base64 of 32 bytes`, comma-separated, the first seals. */
  CREDENTIAL_KEYS: Keys,
  /** Secret. Bearer of the platform routes (enrolling hosts). At least 32 characters. */
  PLATFORM_SECRET: z.string().min(32),
  /** Requests a minute (spec section 8): GET and HEAD of one project, or of a tenant outside its projects. */
  LIMIT_READS_PER_MINUTE: Count.default(1000),
  /** All other methods, counted apart. */
  LIMIT_WRITES_PER_MINUTE: Count.default(200),
  /** Of one client address on routes without a token; as many failed authentications, counted apart. */
  LIMIT_PUBLIC_PER_MINUTE: Count.default(60),
  /** Seconds between two measurements of a project (spec section 8); what its host's agent is set to. */
  MEASURE_INTERVAL_SECONDS: z.coerce.number().positive().default(60),
  /** Where mails are handed over, each as one JSON POST; none are sent if left out. */
  MAIL_API_URL: z.url().optional(),
  /** Secret. Bearer key of the mail service. */
  MAIL_API_KEY: z.string().min(1).optional(),
  MAIL_FROM: z.string().min(1).default('branchgate <no-reply@localhost>'),
  /** Whom storage warnings go to (spec section 6). */
  ALERT_EMAIL: z.string().min(3).optional(),
  /** Origins whose pages may call the API from a browser, comma-separated; none if left out. */
  CORS_ORIGINS: z
    .string()
    .default('')
    .transform((text) => text.split(',').map((origin) => origin.trim()))
    .pipe(z.array(z.union([z.literal(''), z.url().refine((url) => new URL(url).origin === url)])))
    .transform((origins) => origins.filter((origin) => origin !== '')),
});

export type Settings = z.output<typeof Settings> & { BASE_IDP_KEY_ENDPOINT: string };

const readSettingsOf = new WeakMap<object, Settings>();

/**
 * Settings of this isolate, parsed once.
 * @throws Error that names each variable that is missing or wrong, never its value
 */
export function readSettings(env: object): Settings {
  const known = readSettingsOf.get(env);
  if (known) return known;
  const reading = Settings.safeParse(env);
  if (!reading.success) {
    const names = [...new Set(reading.error.issues.map((issue) => String(issue.path[0])))];
    throw new Error(`missing or invalid settings: ${names.join(', ')}`);
  }
  const settings = {
    ...reading.data,
    BASE_IDP_KEY_ENDPOINT:
      reading.data.BASE_IDP_KEY_ENDPOINT ?? `${reading.data.IDP_URL}/v1/keys/paseto-v4-public`,
  };
  readSettingsOf.set(env, settings);
  return settings;
}
