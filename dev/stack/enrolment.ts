import { chownSync, existsSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { z } from 'zod';
import { EnrolmentError, enrol } from '../../agent/link/enrol.ts';
import { readMember } from '../../agent/standby/stored-member.ts';
import { readStored, writeStored } from './dev-folder.ts';
import { runAs } from './os-user.ts';
import { agentSettings, gatewaySettings, gatewayUrl, LOOPBACK, type Site } from './programs.ts';
import { Refusal } from './settings.ts';

/** The name of the host at the gateway. */
export const hostName = ({ number, isStandby }: Pick<Site, 'number' | 'isStandby'>) =>
  isStandby ? 'local-standby' : number === 1 ? 'local' : `local-${number}`;

const Hosts = z.object({
  hosts: z.array(
    z.object({ id: z.uuid(), name: z.string(), linked: z.boolean(), ca_certificate: z.string().nullable() }),
  ),
});
const Enrolment = z.object({ enrolment_token: z.string() });

const identityFile = ({ host }: Pick<Site, 'host'>) => join(host.state, 'host.json');

/** Whether the database host has an identity. */
export const isEnrolled = (site: Pick<Site, 'host'>) => existsSync(identityFile(site));

/**
 * Enrols the database host at the gateway with a one-time token, unless it has an identity. The token is stored until
 * then, so that an interrupted start can be repeated.
 * @throws Refusal
 */
export async function enrolHost(site: Site): Promise<void> {
  if (!isEnrolled(site)) await enrolAt(gatewayUrl(site), site);
  chownSync(identityFile(site), site.user.uid, site.user.gid);
}

async function enrolAt(gatewayUrl: string, site: Site): Promise<void> {
  const { enrolmentFile } = site.folder;
  const enrolment = readStored(enrolmentFile, Enrolment) ?? (await registerHost(site));
  writeStored(enrolmentFile, enrolment);
  try {
    await enrol({ gatewayUrl, stateDir: site.host.state, token: enrolment.enrolment_token });
  } catch (error) {
    throw error instanceof EnrolmentError ? new Refusal(`the enrolment failed: ${error.message}`) : error;
  } finally {
    // After a failure the token may have expired, so the next start requests another.
    rmSync(enrolmentFile);
  }
}

const callPlatform = (site: Site, init: RequestInit = {}, path = '') =>
  fetch(`${gatewayUrl(site)}/platform/v1/hosts${path}`, {
    ...init,
    headers: { authorization: `Bearer ${gatewaySettings(site).PLATFORM_SECRET}` },
  });

async function linkedHost(site: Site) {
  const response = await callPlatform(site).catch(() => null);
  const found = response?.ok ? Hosts.parse(await response.json()).hosts : [];
  return found.find(({ name, linked }) => linked && name === hostName(site));
}

/** Whether the agent is linked. Does not use `/readyz`, which is rate-limited by address. */
export const isLinked = async (site: Site): Promise<boolean> => (await linkedHost(site)) !== undefined;

/** Sends the gateway the certificate authority that clients have to trust. @throws Refusal */
export async function publishAuthority(site: Site, certificate: string): Promise<void> {
  const host = await linkedHost(site);
  if (host?.ca_certificate === certificate) return;
  const change = { method: 'PATCH', body: JSON.stringify({ ca_certificate: certificate }) };
  const response = host && (await callPlatform(site, change, `/${host.id}`));
  if (!response?.ok)
    throw new Refusal(
      `the gateway refused the certificate of the database host (${response ? `status ${response.status}` : 'not linked'}): see ${site.folder.logs}`,
    );
}

/** Replaces the data of a standby by a copy of its primary's, unless it has one, and that of a former primary. */
export async function copyPrimary(site: Site): Promise<void> {
  const { binaries, user, host } = site;
  const tool = (...words: string[]) =>
    runAs(user, binaries.node, [binaries.agent, ...words], { cwd: host.dir, env: agentSettings(site) });
  const { needed, role } = Check.parse(JSON.parse(await tool('--json', 'copy-primary', '--check')));
  if (needed || role === 'fenced') await tool('copy-primary');
}

const Check = z.object({ needed: z.boolean(), role: z.string() });

/** Whether the host has a copy of another one's data, or is to have it. */
export const isCopy = ({ host, isStandby }: Site): boolean => {
  const member = readMember({ STATE_DIR: host.state });
  return member ? !['primary', 'promoting'].includes(member.role) : isStandby;
};

async function registerHost(site: Site) {
  const response = await callPlatform(site, {
    method: 'POST',
    body: JSON.stringify({
      name: hostName(site),
      db_host: LOOPBACK,
      direct_port: site.ports.DIRECT_PORT,
      pooled_port: site.ports.POOLED_PORT,
      ...(site.isStandby && { standby_of: await primaryOf(site) }),
    }),
  });
  if (response.status === 409) {
    throw new Refusal(
      `the identity of the enrolled database host is missing in ${site.host.state}: restore it, or set DEV_DIR to a new folder`,
    );
  }
  if (!response.ok)
    throw new Refusal(
      `the gateway refused to register the database host (status ${response.status}): see ${site.folder.logs}`,
    );
  return Enrolment.parse(await response.json());
}

async function primaryOf(site: Site): Promise<string> {
  const response = await callPlatform(site);
  const primary = Hosts.parse(await response.json()).hosts.find(({ name }) => name === 'local');
  if (!primary) throw new Refusal('the first host is not registered, so it cannot have a standby');
  return primary.id;
}
