import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, inject, test } from 'vitest';
import { devFolder } from '../../dev/stack/dev-folder.ts';
import { Api } from '../support/api.ts';
import { deliveredMails } from '../support/sign-in/mails.ts';
import { newMember, personOf } from '../support/sign-in/people.ts';
import { logIn, mailTo, PASSWORD, readCode, signUp } from '../support/sign-in/sign-in.ts';
import { readStackFile } from '../support/stack/started-stack.ts';
import { contentOfD1 } from '../support/tenants.ts';

const { url, devDir } = inject('stack');
const site = { url, mails: () => deliveredMails({ state: readStackFile(devDir) }) };
const EMAIL = `ada-${crypto.randomUUID()}@example.com`;

interface AuditEvent {
  name: string;
  metadata: Record<string, unknown>;
}

const folder = devFolder(devDir).logs;
const logText = () =>
  readdirSync(folder)
    .map((name) => readFileSync(join(folder, name), 'utf8'))
    .join('\n');

test('a new account has its own tenant and can create a project in it', async () => {
  const { access_token } = await signUp(site, EMAIL);
  const ada = new Api(url, access_token);
  expect((await ada.get('/api/v1/projects')).body).toMatchObject({ projects: [] });
  const project = await ada.project('Notes of G');
  expect(project).toMatchObject({ main_branch: { status: 'active' } });

  const { status, body } = await logIn(site, EMAIL);
  expect([status, body.requires_2fa_setup, body.access_token]).toEqual([200, true, null]);

  const { body: log } = await ada.get<{ audit_events: AuditEvent[] }>('/api/v1/audit-events');
  expect(log.audit_events.map(({ name }) => name)).toEqual(
    expect.arrayContaining(['account.created', 'sign_in.succeeded', 'project.created']),
  );
});

test('on the local stack: a member is invited, sees a shared project, resets the password, and is removed', async () => {
  const email = `grace-${crypto.randomUUID()}@example.com`;
  // The session that the sign-up opened is the only way in without the second step.
  const owner = personOf(site, `o-${email}`, await signUp(site, `o-${email}`));
  const grace = await newMember(owner, site, email, 'viewer');
  const { id } = await owner.api.project('Shared');
  const path = `/api/v1/projects/${id}`;
  expect((await grace.api.get(path)).status).toBe(404);
  const body = { role: 'viewer' };
  expect((await owner.api.call('PUT', `${path}/members/${grace.userId}`, { body })).status).toBe(200);
  expect((await grace.api.get(`${path}/branches`)).body).toMatchObject({
    branches: [{ branch_name: 'main' }],
  });

  const anybody = new Api(url, null);
  const { challenge_id } = (await anybody.post('/api/v1/auth/password/reset/start', { email })).body;
  const code = readCode(await mailTo(site, email, 2));
  const reset = { email, challenge_id, code, new_password: 'staple a new battery' };
  expect((await anybody.post('/api/v1/auth/password/reset', reset)).status).toBe(204);
  expect((await logIn(site, email, 'staple a new battery')).status).toBe(200);

  expect((await owner.api.delete(`/api/v1/members/${grace.userId}`)).status).toBe(204);
  expect((await logIn(site, email, 'staple a new battery')).status).toBe(401);
});

test('its password, code and address are in no log, and its password and code in no audit event', async () => {
  const code = readCode(await mailTo(site, EMAIL));
  const codeAsWord = new RegExp(`(?<![\\w-])${code}(?![\\w-])`);
  const logs = logText();
  expect(logs).toContain('"route":"/api/v1/auth/magic-link/verify"');
  expect(logs).not.toContain(EMAIL);
  const auditRows = JSON.stringify(contentOfD1().audit_events);
  expect(auditRows).toContain(EMAIL);
  for (const text of [logs, auditRows]) {
    expect(text.includes(PASSWORD)).toBe(false);
    expect(codeAsWord.test(text)).toBe(false);
  }
});
