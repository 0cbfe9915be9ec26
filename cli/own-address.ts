import type { Schemas } from '../client/client.ts';
import { dataOf, ResponseError } from '../client/response-error.ts';
import { take } from '../shared/take.ts';
import { say } from './output.ts';
import type { Session } from './session.ts';

export async function rulesOf({ client }: Session, projectId: string, branchId: string) {
  const init = { params: { path: { project_id: projectId } } };
  const rules = await take(client.all('/api/v1/projects/{project_id}/network-rules', init));
  return rules.filter(({ branch_id }) => branch_id === null || branch_id === branchId);
}

/**
 * Adds the address of this machine as a rule of the branch, unless a rule lets it connect already.
 * @returns removes the rule
 */
export async function letConnect(
  session: Session,
  credentials: Schemas['Credentials'],
): Promise<() => Promise<void>> {
  const nothing = async () => {};
  const { project_id: projectId, branch_id: branchId, warning } = credentials;
  if (warning === undefined) return nothing;
  const { api } = session.client;
  const path = { project_id: projectId };
  const body = { cidr: 'me', branch_id: branchId, description: 'branchgate command line' };
  try {
    const rule = await dataOf(
      api.POST('/api/v1/projects/{project_id}/network-rules', { params: { path }, body }),
    );
    say(
      `No network rule let this machine connect. ${rule.cidr} may connect to ${credentials.branch_name} until this command ends.`,
    );
    return async () => {
      const params = { path: { ...path, rule_id: rule.id } };
      await dataOf(api.DELETE('/api/v1/projects/{project_id}/network-rules/{rule_id}', { params })).catch(
        () => say(`The rule ${rule.cidr} could not be removed: run \`branchgate rule remove ${rule.id}\`.`),
      );
    };
  } catch (error) {
    if (error instanceof ResponseError && error.code === 'RULE_EXISTS') return nothing;
    throw error;
  }
}
