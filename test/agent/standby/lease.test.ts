import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir, uptime } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import type { AgentSettings } from '../../../agent/process/settings.ts';
import { leaseLeft, storeLease } from '../../../agent/standby/lease.ts';
import { NEW_MEMBER, type StoredMember, writeMember } from '../../../agent/standby/stored-member.ts';

let settings: AgentSettings;

const member = (change: Partial<StoredMember> = {}) =>
  writeMember(settings, {
    ...NEW_MEMBER,
    ...{ role: 'primary', generation: 1, closing: false, standby_id: null, lease_seconds: 60 },
    ...change,
  });

beforeEach(() => {
  settings = { STATE_DIR: mkdtempSync(join(tmpdir(), 'branchgate-lease-')) } as AgentSettings;
});
afterEach(() => rmSync(settings.STATE_DIR, { recursive: true }));

test('a host serves until the end of its lease, if it needs one', async () => {
  expect(leaseLeft(settings)).toBe(Number.POSITIVE_INFINITY);
  await member();
  // Without a lease it has none.
  expect(leaseLeft(settings)).toBeLessThan(0);
  await storeLease(settings, uptime() + 30);
  expect(leaseLeft(settings)).toBeGreaterThan(25);
  expect(leaseLeft(settings)).toBeLessThanOrEqual(30);
  await storeLease(settings, null);
  expect(leaseLeft(settings)).toBe(Number.POSITIVE_INFINITY);
  await storeLease(settings, uptime() - 1);
  expect(leaseLeft(settings)).toBeLessThan(0);
  for (const change of [{ lease_seconds: null }, { role: 'standby' as const }]) {
    await member(change);
    expect(leaseLeft(settings)).toBe(Number.POSITIVE_INFINITY);
  }
});

test('a lease ends with the boot in which it was given, and a damaged one is none', async () => {
  await member();
  await storeLease(settings, uptime() + 30);
  const file = join(settings.STATE_DIR, 'lease.json');
  const lease = JSON.parse(readFileSync(file, 'utf8'));
  writeFileSync(file, JSON.stringify({ ...lease, boot: crypto.randomUUID() }));
  expect(leaseLeft(settings)).toBeLessThan(0);
  writeFileSync(file, '{');
  expect(leaseLeft(settings)).toBeLessThan(0);
});
