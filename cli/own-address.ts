import type { Schemas } from '../client/client.ts';
import { dataOf, ResponseError } from '../client/response-error.ts';
import { take } from '../shared/take.ts';
import { CommandError } from './exit-codes.ts';
import { ME, withOtherAddress } from './other-address.ts';
import { say } from './output.ts';
import type { Session } from './session.ts';

const RULES = '/api/v1/projects/{project_id}/network-rules';
const RULE = `${RULES}/{rule_id}` as const;

export async function rulesOf({ client }: Session, projectId: string, branchId: string) {
  const init = { params: { path: { project_id: projectId } } };
  const rules = await take(client.all(RULES, init));
  return rules.filter(({ branch_id }) => branch_id === null || branch_id === branchId);
}

/** A rule of a killed command lasts for this long. */
const RULE_SECONDS = 3600;
const EXTEND_EVERY_MS = 20 * 60_000;
const DESCRIPTION = 'branchgate command line';

type Rule = Pick<Schemas['NetworkRule'], 'id' | 'cidr' | 'expires_at'>;
type Branch = Pick<Schemas['Credentials'], 'project_id' | 'branch_id' | 'branch_name'>;
type End = () => Promise<void>;

const hasCode = (error: unknown, code: string) => error instanceof ResponseError && error.code === code;

/**
 * Adds the addresses of this machine as rules of the branch, unless rules let them connect already. A rule
 * that a command of this user has added is extended while this command runs, whichever of them needs it.
 * @returns removes the rules, unless another command needs them
 */
export async function letConnect(session: Session, credentials: Schemas['Credentials']): Promise<End> {
  let missing = credentials.missing_networks ?? [];
  const added: Rule[] = [];
  while (true) {
    const made = await addRules(session, credentials, missing);
    added.push(...made);
    // One that was not missing, or was added meanwhile, can be another command's.
    const isAlone = made.length > 0 && made.length === missing.length;
    const shared = isAlone ? [] : await shareRules(session, credentials, added);
    if (shared) {
      const ends = [...added.map((rule) => holdRule(session, credentials, rule)), ...shared];
      return async () => {
        await Promise.all(ends.map((end) => end()));
      };
    }
    missing = await withOtherAddress(session.url, [ME]);
  }
}

/** @returns without those that another command has added meanwhile, or that are there as another rule */
async function addRules(
  { client }: Session,
  { project_id, branch_id, branch_name }: Branch,
  networks: readonly string[],
): Promise<Rule[]> {
  const added: Rule[] = [];
  for (const cidr of networks) {
    const body = { cidr, branch_id, description: DESCRIPTION, ttl_seconds: RULE_SECONDS };
    try {
      added.push(await dataOf(client.api.POST(RULES, { params: { path: { project_id } }, body })));
    } catch (error) {
      if (!hasCode(error, 'RULE_EXISTS')) throw error;
      const { via, rule_id } = (error as ResponseError).fields;
      if (via === 'sql')
        throw new CommandError(
          'notAllowed',
          `The rule ${rule_id} for ${cidr} opens SQL over HTTP, and not the ports. Open them with: branchgate rule extend ${rule_id} --via all`,
        );
    }
  }
  if (added.length > 0)
    say(
      `No network rule let this machine connect. ${added.map(({ cidr }) => cidr).join(' and ')} may connect to ${branch_name} until this command ends, at most for an hour after it is killed.`,
    );
  return added;
}

/**
 * Extends the rules that other running commands of this user have added, because their end would remove what
 * this one needs. The gateway does not say which of them lets this machine connect.
 * @param own rules of this command
 * @returns null if one of them ended meanwhile
 */
async function shareRules(session: Session, branch: Branch, own: readonly Rule[]): Promise<End[] | null> {
  const { api } = session.client;
  const ends: End[] = [];
  try {
    const known = new Set(own.map(({ id }) => id));
    const rules = (await rulesOfCommands(session, branch)).filter((rule) => !known.has(rule.id));
    if (rules.length === 0) return ends;
    const { id } = await dataOf(api.GET('/api/v1/me'));
    for (const rule of rules.filter(({ created_by }) => created_by === id))
      ends.push(holdRule(session, branch, await extendRule(session, branch, rule)));
    return ends;
  } catch (error) {
    // For instance, this user may not change rules. The machine can connect at present.
    if (!hasCode(error, 'NOT_FOUND')) return ends;
    await Promise.all(ends.map((end) => end()));
    return null;
  }
}

async function rulesOfCommands({ client }: Session, { project_id, branch_id }: Branch) {
  const init = { params: { path: { project_id }, query: { branch_id } } };
  const rules = await take(client.all(RULES, init));
  return rules.filter(({ description, expires_at }) => description === DESCRIPTION && expires_at !== null);
}

const paramsOf = ({ project_id }: Branch, { id }: Rule) => ({ path: { project_id, rule_id: id } });

const extendRule = ({ client }: Session, branch: Branch, rule: Rule): Promise<Rule> =>
  dataOf(client.api.PATCH(RULE, { params: paramsOf(branch, rule), body: { ttl_seconds: RULE_SECONDS } }));

/** Extends the rule again and again, until the returned function is called. */
function holdRule(session: Session, branch: Branch, rule: Rule): End {
  let held = rule;
  let extending = Promise.resolve();
  const extend = async () => {
    try {
      held = await extendRule(session, branch, rule);
    } catch {
      say(`The rule ${rule.cidr} could not be extended. It ends within an hour.`);
    }
  };
  const extension = setInterval(() => {
    extending = extend();
  }, EXTEND_EVERY_MS);
  return async () => {
    clearInterval(extension);
    await extending;
    try {
      const rules = await rulesOfCommands(session, branch);
      const now = rules.find(({ id }) => id === rule.id);
      // Later than this command has set it: another one needs it, and removes it.
      if (!now || endOf(now) > endOf(held)) return;
      await dataOf(session.client.api.DELETE(RULE, { params: paramsOf(branch, rule) }));
    } catch {
      say(`The rule ${rule.cidr} could not be removed. It ends within an hour.`);
    }
  };
}

const endOf = ({ expires_at }: Rule) => Date.parse(expires_at ?? '');
