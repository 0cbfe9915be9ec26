import { and, eq, inArray } from 'drizzle-orm';
import { z } from 'zod';
import { NETWORK_NAMES } from '../../shared/named-networks.ts';
import { currentList, NamedNetwork, toNamedNetworkResponse } from '../access/named-networks.ts';
import {
  CidrOrMe,
  creatorNetwork,
  NetworkRule,
  OWN_ADDRESS,
  toNetworkRuleResponse,
} from '../access/network-rule.ts';
import type { Principal } from '../authentication/principal.ts';
import { branchesOf } from '../branches/branch-reference.ts';
import { coordinatorOf } from '../coordinator/coordinator-rpc.ts';
import { type Database, openDatabase } from '../database/database.ts';
import { namedNetworks, networkRules, projectBranches } from '../database/schema.ts';
import { ApiError, found, unwrap } from '../errors.ts';
import { IdempotencyHeader, KEY_FAILURES, keyUseOf, recordedUses } from '../idempotency/idempotency-key.ts';
import { missing } from '../missing.ts';
import { cutPage, keyset, PageQuery, pageOf } from '../pagination.ts';
import { actorOf, connectingIp } from '../pipeline/context.ts';
import { emptyResponse, jsonBody, operation, operations, response } from '../pipeline/operation.ts';
import { databaseOf } from '../pipeline/replica-choice.ts';
import { readSettings } from '../settings.ts';
import { replay } from './creations.ts';
import { inProject, ProjectParams, RuleParams } from './in-project.ts';

const tags = ['Network rules'];

const BranchId = z.uuid().toLowerCase();

const RuleSeconds = z
  .int()
  .min(60)
  .max(31_536_000)
  .nullable()
  .meta({ description: 'Seconds until the rule is removed. Null: it stays.', example: 3600 });

const NewRule = z
  .strictObject({
    cidr: CidrOrMe.optional(),
    network: z.enum(NETWORK_NAMES).optional().meta({
      description:
        'A network by name, instead of `cidr`: the gateway reads its ranges at its source and keeps them current within a day.',
    }),
    description: z.string().max(200).nullable().default(null),
    ttl_seconds: RuleSeconds.default(null),
    via: NetworkRule.shape.via.default('all'),
    branch_id: BranchId.nullable()
      .default(null)
      .meta({ description: 'The branch that the rule applies to; null for all branches of the project.' }),
  })
  .refine(({ cidr, network }) => (cidr === undefined) !== (network === undefined), {
    message: 'Provide exactly one of cidr and network.',
    path: ['cidr'],
  })
  .meta({ example: { cidr: '203.0.113.0/24', description: 'Office' } });

const RuleChange = z
  .strictObject({ ttl_seconds: RuleSeconds.optional(), via: NetworkRule.shape.via.optional() })
  .refine(({ ttl_seconds, via }) => ttl_seconds !== undefined || via !== undefined, {
    message: 'Provide ttl_seconds or via.',
    path: ['ttl_seconds'],
  })
  .meta({ example: { ttl_seconds: 3600 } });

const endOf = (ttlSeconds: number | null, now: Date) =>
  ttlSeconds === null ? null : new Date(now.getTime() + ttlSeconds * 1000);

const RuleQuery = PageQuery.extend({
  branch_id: BranchId.optional().meta({ description: 'Only rules of this branch.' }),
});

const Removal = z
  .strictObject({ id: z.uuid(), status: z.literal('pending') })
  .meta({ id: 'NetworkRuleRemoval' });

/** For a caller limited to branches: the rules of these branches, and none of the whole project. */
const rulesInReach = (db: Database, projectId: string, caller: Principal) =>
  caller.machine?.branchPattern == null
    ? undefined
    : inArray(
        networkRules.branchId,
        db.select({ id: projectBranches.id }).from(projectBranches).where(branchesOf(projectId, caller)),
      );

/** The rule that the path names, if the caller may see it. */
const ruleInReach = (
  db: Database,
  { project_id: projectId, rule_id: ruleId }: z.output<typeof RuleParams>,
  caller: Principal,
) =>
  db
    .select()
    .from(networkRules)
    .where(
      and(
        eq(networkRules.id, ruleId),
        eq(networkRules.projectId, projectId),
        rulesInReach(db, projectId, caller),
      ),
    );

/**
 * @param address of the request, which `me` stands for.
 * @throws ApiError VALIDATION_FAILED if it is not known
 */
function networkOf(cidr: string, address: string | null): string {
  if (cidr !== OWN_ADDRESS) return cidr;
  const own = creatorNetwork(address);
  if (own !== null) return own;
  const details = [{ path: 'cidr', message: 'Your address is not known. Give a network instead of `me`.' }];
  throw new ApiError('VALIDATION_FAILED', { details });
}

const Address = z
  .strictObject({
    address: z
      .string()
      .nullable()
      .meta({ description: 'Of this request. Null: not known.', example: '203.0.113.7' }),
    ipv4_url: z.url().nullable().meta({
      description: 'This gateway by a name that is reached over IPv4 only. Null: it has none.',
      example: 'https://ipv4.api.example.com',
    }),
    ipv6_url: z.url().nullable().meta({
      description: 'The same for IPv6.',
      example: 'https://ipv6.api.example.com',
    }),
  })
  .meta({ id: 'Address' });

const router = operations();

router.openapi(
  operation({
    access: 'public',
    operationId: 'getAddress',
    method: 'get',
    path: '/api/v1/address',
    summary: 'Get the address that the request comes from',
    description:
      'A network rule for `me` is for this address. A client with both families finds its other address with a second request over that family.',
    tags,
    responses: { 200: response('The address.', Address) },
  }),
  (c) => {
    const { BASE_URL, IPV4_HOST, IPV6_HOST } = readSettings(c.env);
    const { protocol } = new URL(BASE_URL);
    const urlOf = (host: string | undefined) => (host === undefined ? null : `${protocol}//${host}`);
    const network = creatorNetwork(connectingIp(c));
    const address = network === null ? null : (network.split('/')[0] ?? null);
    return c.json({ address, ipv4_url: urlOf(IPV4_HOST), ipv6_url: urlOf(IPV6_HOST) }, 200);
  },
);

router.openapi(
  operation({
    access: 'network_rules.read',
    machines: 'of_branches',
    operationId: 'listNamedNetworks',
    method: 'get',
    path: '/api/v1/named-networks',
    summary: 'List the networks that rules can name',
    description: 'With the ranges that a rule by the name admits now.',
    tags,
    responses: {
      200: response('The networks.', z.strictObject({ named_networks: z.array(NamedNetwork) })),
    },
  }),
  async (c) => {
    const rows = await databaseOf(c).select().from(namedNetworks);
    const networks = NETWORK_NAMES.map((network) =>
      toNamedNetworkResponse(
        network,
        rows.find(({ name }) => name === network),
      ),
    );
    return c.json({ named_networks: networks }, 200);
  },
);

router.openapi(
  operation({
    access: 'network_rules.change',
    machines: 'of_branches',
    operationId: 'createNetworkRule',
    method: 'post',
    path: '/api/v1/projects/{project_id}/network-rules',
    summary: 'Create a network rule',
    description: 'Allows a network to connect to the databases of a project, or of one branch.',
    tags,
    request: { params: ProjectParams, headers: IdempotencyHeader, body: jsonBody(NewRule) },
    responses: {
      201: response(
        'The new rule. It is already in effect on both ports, unless its `status` is `pending` because the host is not connected.',
        NetworkRule,
        'Idempotency-Replayed',
      ),
    },
    failures: [
      ...KEY_FAILURES,
      'RULE_EXISTS',
      'PROJECT_NOT_ACTIVE',
      'RULE_LIMIT_REACHED',
      'NETWORK_LIST_UNAVAILABLE',
    ],
  }),
  async (c) => {
    const { project_id: projectId } = c.req.valid('param');
    const given = c.req.valid('json');
    const { network } = given;
    const body = { ...given, cidr: network ?? networkOf(given.cidr ?? OWN_ADDRESS, connectingIp(c)) };
    const key = c.req.valid('header')['idempotency-key'];
    const keyUse = await keyUseOf(c.var.principal, c.req.path, key, body);
    const { principal } = c.var;
    const ofBranch = and(branchesOf(projectId, principal), eq(projectBranches.id, body.branch_id ?? ''));
    const [, uses, branchRows] = await inProject(c, projectId, (db) => [
      recordedUses(db, keyUse, new Date()),
      db.select({ id: projectBranches.id }).from(projectBranches).where(ofBranch),
    ]);
    if (principal.machine?.branchPattern != null) found(branchRows, missing('branch'));
    const replayed = replay(c, uses, keyUse);
    if (replayed) return c.json(replayed.body as z.input<typeof NetworkRule>, 201);
    const actor = actorOf(c);
    const now = new Date();
    const settings = readSettings(c.env);
    const db = openDatabase(c.env.DB);
    const list = network && unwrap(await currentList(db, settings, network, now));
    const rule = {
      id: crypto.randomUUID(),
      projectId,
      branchId: body.branch_id,
      cidr: body.cidr,
      description: body.description,
      source: 'manual' as const,
      via: body.via,
      revision: 0,
      createdBy: actor.userId,
      tenantId: actor.tenantId,
      createdAt: now,
      expiresAt: endOf(body.ttl_seconds, now),
      listVersion: list?.version ?? 0,
    };
    const added = await coordinatorOf(c.env, projectId).addRule({
      rule,
      actor,
      keyUse,
    });
    return c.json(toNetworkRuleResponse(rule, unwrap(added).applied), 201);
  },
);

router.openapi(
  operation({
    access: 'network_rules.read',
    machines: 'of_branches',
    operationId: 'listNetworkRules',
    method: 'get',
    path: '/api/v1/projects/{project_id}/network-rules',
    summary: 'List network rules, oldest first',
    tags,
    request: { params: ProjectParams, query: RuleQuery },
    responses: { 200: response('A page of rules.', pageOf('network_rules', NetworkRule)) },
  }),
  async (c) => {
    const { project_id: projectId } = c.req.valid('param');
    const query = c.req.valid('query');
    const { orderBy, beyond } = keyset(networkRules, 'oldest_first', query);
    const ofBranch = query.branch_id && eq(networkRules.branchId, query.branch_id);
    const [{ accessApplied }, rows] = await inProject(c, projectId, (db) => [
      db
        .select()
        .from(networkRules)
        .where(
          and(
            eq(networkRules.projectId, projectId),
            ofBranch || undefined,
            rulesInReach(db, projectId, c.var.principal),
            beyond,
          ),
        )
        .orderBy(...orderBy)
        .limit(query.limit + 1),
    ]);
    const { page, next_cursor } = cutPage(rows, query);
    const records = page.map((row) => toNetworkRuleResponse(row, row.revision <= accessApplied));
    return c.json({ network_rules: records, next_cursor }, 200);
  },
);

router.openapi(
  operation({
    access: 'network_rules.change',
    machines: 'of_branches',
    operationId: 'updateNetworkRule',
    method: 'patch',
    path: '/api/v1/projects/{project_id}/network-rules/{rule_id}',
    summary: 'Change when a network rule ends, or what it opens',
    description:
      'The seconds are counted from the request. With `via` set to `sql`, sessions at the ports end as after a removal.',
    tags,
    request: { params: RuleParams, body: jsonBody(RuleChange) },
    responses: { 200: response('The changed rule.', NetworkRule) },
  }),
  async (c) => {
    const { project_id: projectId, rule_id: ruleId } = c.req.valid('param');
    const [project, rules] = await inProject(c, projectId, (db) => [
      ruleInReach(db, c.req.valid('param'), c.var.principal),
    ]);
    const rule = found(rules);
    const { ttl_seconds: ttlSeconds, via } = c.req.valid('json');
    const change = {
      ...(ttlSeconds !== undefined && { expiresAt: endOf(ttlSeconds, new Date()) }),
      ...(via && { via }),
    };
    const edit = { projectId, ruleId, actor: actorOf(c), change };
    const changed = unwrap(await coordinatorOf(c.env, projectId).changeRule(edit));
    const isOpened = via !== undefined && via !== rule.via;
    const applied = isOpened ? changed.applied : rule.revision <= project.accessApplied;
    return c.json(toNetworkRuleResponse({ ...rule, ...change }, applied), 200);
  },
);

router.openapi(
  operation({
    access: 'network_rules.change',
    machines: 'of_branches',
    operationId: 'deleteNetworkRule',
    method: 'delete',
    path: '/api/v1/projects/{project_id}/network-rules/{rule_id}',
    summary: 'Delete a network rule',
    tags,
    request: { params: RuleParams },
    responses: {
      202: response('The rule is deleted, but stays in effect until the host is connected again.', Removal),
      204: emptyResponse('The rule is deleted and no longer in effect.'),
    },
  }),
  async (c) => {
    const { project_id: projectId, rule_id: ruleId } = c.req.valid('param');
    const [, rules] = await inProject(c, projectId, (db) => [
      ruleInReach(db, c.req.valid('param'), c.var.principal),
    ]);
    found(rules);
    const edit = { projectId, ruleId, actor: actorOf(c), change: 'remove' as const };
    const removed = await coordinatorOf(c.env, projectId).changeRule(edit);
    if (unwrap(removed).applied) return c.body(null, 204);
    return c.json({ id: ruleId, status: 'pending' as const }, 202);
  },
);

export const networkRuleRoutes = router;
