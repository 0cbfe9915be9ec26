import { and, eq, isNull, or } from 'drizzle-orm';
import { z } from 'zod';
import { CLOUDFLARE_WORKERS_ADDRESS, isInNetwork, readCidr } from '../../shared/cidr.ts';
import { isNetworkName, NETWORK_NAMES } from '../../shared/named-networks.ts';
import { RULE_VIAS } from '../../shared/rule-via.ts';
import { type Database, isOneOf } from '../database/database.ts';
import { type NetworkRuleRow, namedNetworks, networkRules } from '../database/schema.ts';

/** `applied`: the rule is known to be in effect on both ports. */
export const NetworkRule = z
  .strictObject({
    id: z.uuid(),
    project_id: z.uuid(),
    branch_id: z
      .uuid()
      .nullable()
      .meta({ description: 'Null: the rule is for every branch of the project.' }),
    cidr: z.string().meta({ description: 'Of a rule by name, the name.', example: '203.0.113.0/24' }),
    network: z.enum(NETWORK_NAMES).nullable().meta({
      description: 'The network that the rule names, whose ranges are kept current. Null: it has a `cidr`.',
      example: null,
    }),
    description: z.string().nullable().meta({ example: 'Office' }),
    source: z
      .enum(networkRules.source.enumValues)
      .meta({ description: '`creator_ip`: added with a branch for the address of its creator.' }),
    via: z.enum(RULE_VIAS).meta({
      description: '`all`: the ports, and SQL over HTTP. `sql`: SQL over HTTP alone.',
    }),
    status: z
      .enum(['applied', 'pending'])
      .meta({ description: '`applied`: in effect on both ports. `pending`: the host is not connected.' }),
    created_by: z.uuid(),
    created_at: z.iso.datetime(),
    expires_at: z.iso
      .datetime()
      .nullable()
      .meta({ description: 'The rule is removed then. Null: it stays.', example: null }),
  })
  .meta({ id: 'NetworkRule' });

export const toNetworkRuleResponse = (
  row: NetworkRuleRow,
  applied: boolean,
): z.output<typeof NetworkRule> => ({
  id: row.id,
  project_id: row.projectId,
  branch_id: row.branchId,
  cidr: row.cidr,
  network: isNetworkName(row.cidr) ? row.cidr : null,
  description: row.description,
  source: row.source,
  via: row.via,
  status: applied ? 'applied' : 'pending',
  created_by: row.createdBy,
  created_at: row.createdAt.toISOString(),
  expires_at: row.expiresAt?.toISOString() ?? null,
});

/** In place of a network: the address of the request. */
export const OWN_ADDRESS = 'me';

const Text = z.string().max(64);
const EXAMPLE = '203.0.113.0/24';

function canonical(text: string, context: z.RefinementCtx): string {
  const reading = readCidr(text.trim());
  if (reading.ok) return reading.cidr;
  context.addIssue({ code: 'custom', message: reading.message });
  return z.NEVER;
}

/** A network in a request; parses to its canonical form. */
export const Cidr = Text.transform(canonical).meta({
  description: 'An IPv4 or IPv6 network in CIDR notation, or a single address.',
  example: EXAMPLE,
});

/** As `Cidr`, or `me`, which stays as it is. */
export const CidrOrMe = Text.transform((text, context) =>
  text === OWN_ADDRESS ? text : canonical(text, context),
).meta({
  description:
    'An IPv4 or IPv6 network in CIDR notation, a single address, or `me`: the address of the request.',
  example: EXAMPLE,
});

/**
 * The network of the address that a branch was created from (specification 4.3, step 5), as Cloudflare
 * reports it; null if it reports none, or if the request comes from a Worker, whose address is shared by all
 * Workers.
 */
export function creatorNetwork(connectingIp: string | null): string | null {
  if (!connectingIp || connectingIp === CLOUDFLARE_WORKERS_ADDRESS) return null;
  const reading = readCidr(connectingIp);
  return reading.ok ? reading.cidr : null;
}

/**
 * The rules of a new branch, which are part of its reservation: one with which its creator can connect
 * immediately, and those that the creator asked for.
 */
export function newBranchRules(
  project: { id: string; tenantId: string },
  branch: { id: string; createdBy: string },
  { creatorCidr, allow }: { creatorCidr: string | null; allow: readonly string[] },
  now: Date,
): NetworkRuleRow[] {
  const rule = (cidr: string, source: NetworkRuleRow['source'], description: string | null) => ({
    id: crypto.randomUUID(),
    projectId: project.id,
    branchId: branch.id,
    cidr,
    description,
    source,
    via: 'all' as const,
    revision: 0,
    createdBy: branch.createdBy,
    tenantId: project.tenantId,
    createdAt: now,
    expiresAt: null,
    listVersion: 0,
  });
  return [
    ...(creatorCidr === null ? [] : [rule(creatorCidr, 'creator_ip', 'Address the branch was created from')]),
    ...[...new Set(allow)].filter((cidr) => cidr !== creatorCidr).map((cidr) => rule(cidr, 'manual', null)),
  ];
}

interface BranchIds {
  id: string;
  projectId: string;
}

/** The networks that may connect to the ports of branches of a project; `branchId` null: of all of them. */
export const rulesOfBranches = (db: Database, projectId: string, branchIds: readonly string[]) =>
  db
    .select({ branchId: networkRules.branchId, cidr: networkRules.cidr })
    .from(networkRules)
    .where(
      and(
        eq(networkRules.projectId, projectId),
        eq(networkRules.via, 'all'),
        or(isNull(networkRules.branchId), isOneOf(networkRules.branchId, branchIds)),
      ),
    );

/** The ranges of the networks that rules can name. */
export const networkLists = (db: Database) =>
  db.select({ name: namedNetworks.name, ranges: namedNetworks.ranges }).from(namedNetworks);

export type NetworkList = Pick<typeof namedNetworks.$inferSelect, 'name' | 'ranges'>;

/** The same rules, with the ranges of a network in place of its name. */
export const withRanges = <R extends { cidr: string }>(
  rules: readonly R[],
  lists: readonly NetworkList[],
): R[] =>
  rules.flatMap((rule) => {
    if (!isNetworkName(rule.cidr)) return [rule];
    const list = lists.find(({ name }) => name === rule.cidr);
    return (list?.ranges ?? []).map((cidr) => ({ ...rule, cidr }));
  });

/**
 * A warning with the remedy, if no rule lets one of these addresses connect: PostgreSQL's own refusal names
 * neither. A client that has addresses of both families may connect from either.
 * @param addresses of the client; null: not known
 */
export function missingRules(
  { id, projectId }: BranchIds,
  rules: readonly { branchId: string | null; cidr: string }[],
  addresses: readonly (string | null)[],
): { warning?: string; missing_networks?: string[] } {
  const ofBranch = rules.filter(({ branchId }) => branchId === null || branchId === id);
  const missing = new Map<string, string>();
  for (const address of addresses) {
    const network = creatorNetwork(address);
    if (network === null || address === null) continue;
    if (!ofBranch.some(({ cidr }) => isInNetwork(address, cidr))) missing.set(network, address);
  }
  if (missing.size === 0) return {};
  const networks = [...missing.keys()];
  const missed = [...missing.values()];
  const bodies = networks.map((cidr) => JSON.stringify({ cidr, branch_id: id }));
  return {
    warning: `No network rule lets your ${missed.length === 1 ? 'address' : 'addresses'} ${missed.join(' and ')} connect. To add one, send POST /api/v1/projects/${projectId}/network-rules with the body ${bodies.join(', then with ')}.`,
    missing_networks: networks,
  };
}
