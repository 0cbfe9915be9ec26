import { readFileSync, statSync } from 'node:fs';
import { BlockList, isIPv6 } from 'node:net';
import { join } from 'node:path';
import type { Attempt } from '../logs/connection-logs.ts';
import { RULE_FILES } from '../servers/configuration.ts';

/** A line of the pooler's rule file, as `rule-files.ts` writes it: database, logins, network. */
const RULE = /^hostssl "([^"]+)" (\S+) ([^\s/]+)\/(\d+) (scram-sha-256|reject)$/gm;

const familyOf = (address: string) => (isIPv6(address) ? 'ipv6' : 'ipv4');

/**
 * Whether the pooler's rule file lets a client try a password. The pooler logs every attempt, and attempts of
 * unauthorised clients must not count against a branch.
 */
export class Admission {
  readonly #file: string;
  #version = '';
  /** By database. */
  #rules = new Map<string, Rule[]>();

  constructor(rulesFolder: string) {
    this.#file = join(rulesFolder, RULE_FILES.poolerHba);
  }

  /** Reads the file if it has changed since the last call. */
  refresh(): void {
    const { ino, mtimeNs } = statSync(this.#file, { bigint: true });
    const version = `${ino} ${mtimeNs}`;
    if (version === this.#version) return;
    this.#rules = new Map();
    const text = readFileSync(this.#file, 'utf8');
    for (const [, database = '', logins = '', address = '', prefix, method] of text.matchAll(RULE)) {
      const rules = this.#rules.get(database) ?? [];
      rules.push(new Rule(logins, address, Number(prefix), method !== 'reject'));
      this.#rules.set(database, rules);
    }
    this.#version = version;
  }

  admits({ database, login, address }: Attempt): boolean {
    // The pooler applies the first rule that matches.
    return this.#rules.get(database)?.find((rule) => rule.matches(login, address))?.admits ?? false;
  }
}

class Rule {
  readonly admits: boolean;
  readonly #logins: string;
  readonly #address: string;
  readonly #prefix: number;
  /** Created on first use: only few of many rules are ever used. */
  #network: BlockList | null = null;

  constructor(logins: string, address: string, prefix: number, admits: boolean) {
    this.#logins = logins;
    this.#address = address;
    this.#prefix = prefix;
    this.admits = admits;
  }

  matches(login: string, address: string): boolean {
    if (!this.#logins.includes(`"${login}"`)) return false;
    if (!this.#network) {
      this.#network = new BlockList();
      this.#network.addSubnet(this.#address, this.#prefix, familyOf(this.#address));
    }
    return this.#network.check(address, familyOf(address));
  }
}
