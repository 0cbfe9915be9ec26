import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { IS_NIGHTLY } from '../support/nightly.ts';
import { ADDRESS, Operator } from '../support/operator/operator.ts';

/** What operators get wrong: each message names the cause and the remedy. */

let operator: Operator;

beforeAll(async () => {
  operator = await Operator.open();
});
afterAll(() => operator.close());

interface Mistake {
  /** Flags that differ from those of a right run; undefined leaves one out. */
  flags?: Record<string, string | undefined>;
  words?: string[];
  env?: Record<string, string>;
  /** What is different at Cloudflare. */
  arrange?: () => void;
  code: number;
  says: string[];
}

const MISTAKES: Record<string, Mistake> = {
  'no login': {
    env: { CLOUDFLARE_API_TOKEN: '' },
    code: 4,
    says: ['You are not signed in to Cloudflare.', 'Run `npx wrangler login`, or set CLOUDFLARE_API_TOKEN.'],
  },
  'a wrong token': {
    env: { CLOUDFLARE_API_TOKEN: 'not-a-token' },
    code: 1,
    says: [
      'Cloudflare rejects the token in CLOUDFLARE_API_TOKEN.',
      'make another one with Workers Scripts: Edit',
    ],
  },
  'a token that has expired': {
    env: { CLOUDFLARE_API_TOKEN: 'an-old-token' },
    arrange: () => {
      operator.cloudflare.rejection = { code: 1001, message: 'This API Token has expired' };
    },
    code: 1,
    says: ['The token in CLOUDFLARE_API_TOKEN has expired.', 'Make another one'],
  },
  'no account': {
    arrange: () => {
      operator.cloudflare.accounts = [];
    },
    code: 3,
    says: ['The Cloudflare login has no account.', 'Sign up at dash.cloudflare.com'],
  },
  'several accounts': {
    arrange: () => operator.cloudflare.accounts.push({ id: 'b'.repeat(32), name: 'Other' }),
    code: 2,
    says: ['The login has several accounts. Give one of these with --account:', 'b'.repeat(32), 'Other'],
  },
  'answers that are missing': {
    flags: { address: undefined, owner: undefined },
    code: 2,
    says: ['Without a terminal every answer is a flag. Missing: --address, --owner.'],
  },
  'an address that is none': {
    flags: { address: 'gateway' },
    code: 2,
    says: ['--address gateway is invalid. Give a host name, for instance gateway.example.com.'],
  },
  'a name that is taken': {
    arrange: () =>
      operator.cloudflare.scripts.set('gate', { versions: [], serving: 'version', migrationTag: null }),
    code: 6,
    says: ['The account has a Worker named gate already. Choose another --name'],
  },
  'an address that is in use': {
    arrange: () => operator.named.add(ADDRESS),
    code: 6,
    says: [`${ADDRESS} has a DNS record already`, 'Choose another --address, or add --take-address'],
  },
  'a secret among the settings': {
    words: ['--var', 'MAIL_API_KEY=key'],
    code: 2,
    says: ['MAIL_API_KEY is a secret. Set it in the environment instead of --var.'],
  },
  'a setting with an invalid value': {
    words: ['--var', 'TWO_FACTOR=sometimes'],
    code: 2,
    says: [
      'missing or invalid settings: TWO_FACTOR (off, prompt or required). Give them with --var NAME=value',
    ],
  },
  'a setting out of its range': {
    words: ['--var', 'BRANCH_LIMIT_MAX=300'],
    code: 2,
    says: [
      'missing or invalid settings: BRANCH_LIMIT_MAX (integer from 1 to 100).',
      '--var NAME=value',
      'dashboard',
    ],
  },
  'the secrets of another gateway': {
    arrange: () =>
      writeFileSync(join(operator.folder, 'other.secrets'), 'BASE_URL=https://other.example.test\n'),
    get flags() {
      return { 'secrets-file': join(operator.folder, 'other.secrets') };
    },
    code: 6,
    says: ['but of https://other.example.test. Choose another file with --secrets-file.'],
  },
  'an upgrade of nothing': {
    words: ['upgrade'],
    flags: { name: undefined, address: undefined, owner: undefined },
    code: 2,
    says: ['has no record of a deployment. Run `npm run deploy` first.'],
  },
};

/** By day: one that Cloudflare finds, and those that are found before wrangler starts. */
const BY_DAY: (keyof typeof MISTAKES)[] = [
  'a wrong token',
  'answers that are missing',
  'a secret among the settings',
  'a setting out of its range',
  'the secrets of another gateway',
  'an upgrade of nothing',
];
const NAMES = IS_NIGHTLY ? Object.keys(MISTAKES) : BY_DAY;

test.each(NAMES.map((name) => [name, MISTAKES[name] ?? expect.unreachable()] as const))(
  '%s',
  async (_, { flags, words = [], env = {}, arrange, code, says }) => {
    const { accounts, rejection } = operator.cloudflare;
    operator.cloudflare.accounts = [...accounts];
    arrange?.();
    try {
      const ended = await operator.start([...words, ...operator.words(flags ?? {})], env).ended;
      expect(ended.code, ended.stderr).toBe(code);
      for (const text of says) expect(ended.stderr).toContain(text);
      expect(ended.stderr).not.toMatch(/^\s+at /m);
      expect(operator.cloudflare.writes).toEqual([]);
    } finally {
      operator.cloudflare.accounts = accounts;
      operator.cloudflare.rejection = rejection;
      operator.cloudflare.scripts.clear();
      operator.named.clear();
    }
  },
);
