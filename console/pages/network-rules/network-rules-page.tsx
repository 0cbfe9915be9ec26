import { useQuery } from '@tanstack/react-query';
import { useParams } from '@tanstack/react-router';
import { useState } from 'react';
import { dateTime, duration, secondsUntil } from '../../app/format.ts';
import { branchesQuery, type NetworkRule, rulesQuery } from '../../app/resources.ts';
import { mayChange, sessionStore } from '../../app/session.ts';
import { Page } from '../../app/shell.tsx';
import { useStore } from '../../app/store.ts';
import { BranchName } from '../../components/branch-status.tsx';
import { Button } from '../../components/button.tsx';
import { CommandLine } from '../../components/copy.tsx';
import { Empty, Loaded, Note } from '../../components/feedback.tsx';
import { ListTable } from '../../components/list-table.tsx';
import { useNow } from '../../components/now.ts';
import { COMMANDS } from '../../strings/commands.ts';
import { TEXT } from '../../strings/common.ts';
import { RULES_TEXT } from '../../strings/rules.ts';
import { AddRule } from './add-rule.tsx';
import { RemoveRuleDialog } from './remove-rule-dialog.tsx';
import { TestAddress } from './test-address.tsx';

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
