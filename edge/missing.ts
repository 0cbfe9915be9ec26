import type { Failure } from '../shared/failures.ts';

/** What a request can name, in the words of a message. */
export const RESOURCES = {
  api_key: 'API key',
  bisection: 'open bisection',
  branch: 'branch',
  change: 'change',
  checkpoint: 'checkpoint',
  comparison: 'comparison',
  deleted_branch: 'deleted branch that can be restored',
  domain: 'domain',
  follow: 'database that the project follows',
  host: 'host',
  identity_provider: 'identity provider',
  invitation: 'invitation',
  job: 'job',
  member: 'member',
  network_rule: 'network rule',
  oauth_grant: 'signed-in client',
  operation: 'operation',
  project: 'project',
  rehearsal: 'rehearsal',
  scim_resource: 'user or group',
  session: 'session',
  snapshot: 'snapshot',
  table: 'table',
  tenant: 'tenant',
  trust: 'trust',
  webhook: 'webhook',
} as const;
export type Resource = keyof typeof RESOURCES;

/** Where something with a name was sought. */
const WITHIN: Partial<Record<Resource, string>> = { branch: ' in this project', table: ' in this branch' };
const NAME_LENGTH_MAX = 100;

/**
 * NOT_FOUND that says what was not found. What the caller may not see has the same message as what does not
 * exist.
 * @param name as the request gives it
 */
export function missing(resource: Resource, name?: string) {
  const noun = RESOURCES[resource];
  const sought = name === undefined ? noun : `${noun} ${name.slice(0, NAME_LENGTH_MAX)}`;
  const message = `No ${sought} was found${name === undefined ? '' : (WITHIN[resource] ?? '')}.`;
  return { code: 'NOT_FOUND', fields: { message, resource } } as const satisfies Failure;
}
