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

/** A rule of a killed command lasts for this long. */
const RULE_SECONDS = 3600;
const EXTEND_EVERY_MS = 20 * 60_000;

const RULES = '/api/v1/projects/{project_id}/network-rules';
const RULE = `${RULES}/{rule_id}` as const;

/**
 * Adds the address of this machine as a rule of the branch, unless a rule lets it connect already. The rule is extended while
 * this command runs.
 * @returns removes the rule
 */
export async function letConnect(
  session: Session,
  credentials: Schemas['Credentials'],
): Promise<() => Promise<void>> {
  const nothing = async () => {};
  const { project_id, branch_id, branch_name, warning } = credentials;
  if (warning === undefined) return nothing;
  const { api } = session.client;
  const body = { cidr: 'me', branch_id, description: 'branchgate command line', ttl_seconds: RULE_SECONDS };
  try {
    const rule = await dataOf(api.POST(RULES, { params: { path: { project_id } }, body }));
    say(
      `No network rule let this machine connect. ${rule.cidr} may connect to ${branch_name} until this command ends, at most for an hour after it is killed.`,
    );
    const params = { path: { project_id, rule_id: rule.id } };
    const extension = setInterval(() => {
      void dataOf(api.PATCH(RULE, { params, body: { ttl_seconds: RULE_SECONDS } })).catch(() =>
        say(`The rule ${rule.cidr} could not be extended. It ends within an hour.`),
      );
    }, EXTEND_EVERY_MS);
    return async () => {
      clearInterval(extension);
      await dataOf(api.DELETE(RULE, { params })).catch(() =>
        say(`The rule ${rule.cidr} could not be removed. It ends within an hour.`),
      );
    };
  } catch (error) {
    if (error instanceof ResponseError && error.code === 'RULE_EXISTS') return nothing;
    throw error;
  }
}
