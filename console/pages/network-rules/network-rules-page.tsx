import { useMutation, useQuery, useQueryClient } from '@tanstack/react-query';
import { useState } from 'react';
import { dataOf } from '../../../client/response-error.ts';
import { Button } from '../../components/button.tsx';
import { CommandLine } from '../../components/copy.tsx';
import { announce, detailsOf, Empty, ErrorNote, Loaded, Note } from '../../components/feedback.tsx';
import { Field, SelectField } from '../../components/field.tsx';
import { api } from '../../data/gateway.ts';
import { type Branch, branchesQuery, type NetworkRule, rulesQuery } from '../../data/resources.ts';
import { COMMANDS } from '../../strings/commands.ts';
import { RULES_TEXT } from '../../strings/rules.ts';
import './network-rules.css';
import { useParams } from '@tanstack/react-router';
import { isInNetwork, isPlainAddress } from '../../../shared/cidr.ts';
import { BranchName } from '../../components/branch.tsx';
import { ActionDialog } from '../../components/dialog.tsx';
import { ListTable } from '../../components/list-table.tsx';
import { Page } from '../../components/page.tsx';
import { useNow } from '../../components/time.tsx';
import { refresh } from '../../data/query-client.ts';
import { mayChange, sessionStore } from '../../data/session.ts';
import { useStore } from '../../data/store.ts';
import { TEXT } from '../../strings/common.ts';
import { dateTime, duration, secondsUntil } from '../../strings/format.ts';

const EVERY = '';
const FOREVER = '';
const UNIT_SECONDS: Record<string, number> = { h: 3_600, d: 86_400 };

/** @param life as the command line has it, for instance `8h` */
const secondsOf = (life: string): number | null =>
  life === FOREVER ? null : Number.parseInt(life, 10) * (UNIT_SECONDS[life.slice(-1)] ?? 0);

export function AddRule({ projectId, branches }: { projectId: string; branches: readonly Branch[] }) {
  const client = useQueryClient();
  const [cidr, setCidr] = useState('');
  const [branchId, setBranchId] = useState(EVERY);
  const [description, setDescription] = useState('');
  const [life, setLife] = useState<string>(FOREVER);
  const addition = useMutation({
    mutationFn: () =>
      dataOf(
        api.POST('/api/v1/projects/{project_id}/network-rules', {
          params: { path: { project_id: projectId } },
          body: {
            cidr,
            branch_id: branchId === EVERY ? null : branchId,
            description: description || null,
            ttl_seconds: secondsOf(life),
          },
        }),
      ),
    onSuccess: ({ status }) => {
      announce(status === 'applied' ? RULES_TEXT.added : RULES_TEXT.addedPending);
      setCidr('');
      setDescription('');
      client.invalidateQueries({ queryKey: rulesQuery(projectId).queryKey });
    },
  });
  const problem = detailsOf(addition.error).find(({ path }) => path === 'cidr')?.message;
  return (
    <form
      className="card padded stack"
      onSubmit={(event) => {
        event.preventDefault();
        if (!addition.isPending) addition.mutate();
      }}
    >
      <div className="rule-form">
        <Field
          label={RULES_TEXT.network}
          className="mono"
          placeholder="203.0.113.0/24"
          value={cidr}
          onChange={(event) => setCidr(event.target.value)}
          problem={problem}
          required
        />
        <SelectField
          label={RULES_TEXT.scope}
          value={branchId}
          onChange={(event) => setBranchId(event.target.value)}
        >
          <option value={EVERY}>{RULES_TEXT.everyBranch}</option>
          {branches.map(({ id, branch_name }) => (
            <option key={id} value={id}>
              {branch_name}
            </option>
          ))}
        </SelectField>
        <Field
          label={RULES_TEXT.description}
          value={description}
          maxLength={200}
          onChange={(event) => setDescription(event.target.value)}
        />
        <SelectField label={RULES_TEXT.life} value={life} onChange={(event) => setLife(event.target.value)}>
          {RULES_TEXT.lives.map(([value, label]) => (
            <option key={value} value={value}>
              {label}
            </option>
          ))}
        </SelectField>
        <Button type="submit" look="primary" icon="plus" busy={addition.isPending}>
          {RULES_TEXT.add}
        </Button>
      </div>
      {addition.isError && !problem && <ErrorNote error={addition.error} />}
      {cidr !== '' && (
        <CommandLine
          command={COMMANDS.addRule(
            projectId,
            cidr,
            branches.find(({ id }) => id === branchId)?.branch_name,
            life,
          )}
        />
      )}
    </form>
  );
}

interface RemoveProps {
  projectId: string;
  rule: NetworkRule;
  branch: string | undefined;
  onClose: () => void;
}

export const RemoveRuleDialog = ({ projectId, rule, branch, onClose }: RemoveProps) => (
  <ActionDialog
    title={RULES_TEXT.removeTitle}
    action={RULES_TEXT.remove}
    isDangerous
    run={() =>
      dataOf(
        api.DELETE('/api/v1/projects/{project_id}/network-rules/{rule_id}', {
          params: { path: { project_id: projectId, rule_id: rule.id } },
        }),
      )
    }
    onDone={(pending) => {
      announce(pending ? RULES_TEXT.removedPending : RULES_TEXT.removed);
      refresh(rulesQuery(projectId));
    }}
    onClose={onClose}
    command={COMMANDS.removeRule(projectId, rule.id)}
  >
    <p>{RULES_TEXT.removeHint(rule.cidr, branch ?? RULES_TEXT.everyBranch)}</p>
  </ActionDialog>
);

interface TestProps {
  rules: readonly NetworkRule[];
  branches: readonly Branch[];
}

/** Which branches an address may connect to, and by which rule. */
export function TestAddress({ rules, branches }: TestProps) {
  const [address, setAddress] = useState('');
  const wanted = address.trim();
  const isAddress = isPlainAddress(wanted);
  const matching = isAddress ? rules.filter(({ cidr }) => isInNetwork(wanted, cidr)) : [];
  const everywhere = matching.filter(({ branch_id }) => branch_id === null);
  const reached = branches.filter(({ id }) => matching.some(({ branch_id }) => branch_id === id));
  return (
    <section className="card padded stack" aria-labelledby="test-address">
      <h2 id="test-address">{RULES_TEXT.test}</h2>
      <Field
        label={RULES_TEXT.address}
        className="mono"
        placeholder="203.0.113.7"
        value={address}
        onChange={(event) => setAddress(event.target.value)}
      />
      {wanted !== '' && (
        <div role="status">
          {!isAddress && <Note>{RULES_TEXT.noAddress}</Note>}
          {isAddress && matching.length === 0 && <Note tone="bad">{RULES_TEXT.reachesNone(wanted)}</Note>}
          {everywhere.length > 0 && (
            <Note tone="good">
              {RULES_TEXT.reachesAll(wanted, everywhere.map(({ cidr }) => cidr).join(', '))}
            </Note>
          )}
          {everywhere.length === 0 && reached.length > 0 && (
            <Note tone="good">
              {RULES_TEXT.reachesSome(wanted, reached.map(({ branch_name }) => branch_name).join(', '))}
            </Note>
          )}
        </div>
      )}
    </section>
  );
}

function End({ at }: { at: string | null }) {
  const now = useNow();
  if (at === null) return <span className="quiet">{RULES_TEXT.stays}</span>;
  return <span title={dateTime(at)}>{RULES_TEXT.ends(duration(secondsUntil(at, now)))}</span>;
}

export function NetworkRulesPage() {
  const { projectId } = useParams({ from: '/inside/projects/$projectId/network-rules' });
  const rules = useQuery(rulesQuery(projectId));
  const branches = useQuery(branchesQuery(projectId)).data ?? [];
  const session = useStore(sessionStore);
  const mayEdit = session.state === 'signed_in' && mayChange(session.me);
  const [leaving, setLeaving] = useState<NetworkRule | null>(null);
  const nameOf = (id: string | null) => branches.find((branch) => branch.id === id)?.branch_name;
  return (
    <Page title={TEXT.nav.rules} about={RULES_TEXT.about}>
      {!mayEdit && <Note>{TEXT.states.readOnly}</Note>}
      {mayEdit && <AddRule projectId={projectId} branches={branches} />}
      <Loaded query={rules}>
        {(all) => (
          <>
            <div className="card">
              {all.length === 0 ? (
                <Empty icon="shield" title={RULES_TEXT.none}>
                  <p>{RULES_TEXT.noneHint}</p>
                </Empty>
              ) : (
                <ListTable columns={RULES_TEXT.columns}>
                  {all.map((rule) => (
                    <tr key={rule.id}>
                      <td className="mono">{rule.cidr}</td>
                      <td>
                        {rule.branch_id === null ? (
                          RULES_TEXT.everyBranch
                        ) : (
                          <BranchName name={nameOf(rule.branch_id) ?? rule.branch_id} />
                        )}
                      </td>
                      <td>
                        <span className={rule.status === 'applied' ? 'badge good' : 'badge warn busy'}>
                          {RULES_TEXT.statuses[rule.status]}
                        </span>
                      </td>
                      <td>
                        <div>
                          <div>{rule.description ?? RULES_TEXT.sources[rule.source]}</div>
                          <div className="small quiet">{RULES_TEXT.addedOn(dateTime(rule.created_at))}</div>
                        </div>
                      </td>
                      <td className="nowrap">
                        <End at={rule.expires_at} />
                      </td>
                      <td className="actions">
                        {mayEdit && (
                          <Button
                            compact
                            look="bare"
                            icon="trash"
                            aria-label={RULES_TEXT.removeOf(rule.cidr)}
                            onClick={() => setLeaving(rule)}
                          />
                        )}
                      </td>
                    </tr>
                  ))}
                </ListTable>
              )}
            </div>
            <TestAddress rules={all} branches={branches} />
          </>
        )}
      </Loaded>
      <CommandLine command={COMMANDS.listRules(projectId)} />
      {leaving && (
        <RemoveRuleDialog
          projectId={projectId}
          rule={leaving}
          branch={nameOf(leaving.branch_id)}
          onClose={() => setLeaving(null)}
        />
      )}
    </Page>
  );
}
