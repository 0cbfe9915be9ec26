import { startHost } from './host.ts';
import { Project, asClient, connect } from './host-project.ts';
import { execSync } from 'node:child_process';
const s = await startHost();
const t0 = performance.now(); const now = () => (performance.now()-t0).toFixed(0);
try {
  const p = new Project(s.host);
  const main = await p.create('db_shop_prod', null);
  await asClient(s.host, 'direct', main, 'owner', 'CREATE TABLE account (id int PRIMARY KEY, balance int NOT NULL);INSERT INTO account SELECT id, 0 FROM generate_series(1, 20000) id');
  let stop = false;
  const work = async (n: number) => {
    const c = await connect(s.host, 'pooled', main, 'read_write');
    while (!stop) {
      const a = performance.now();
      const marks: number[] = [];
      for (const q of ['BEGIN', 'UPDATE account SET balance = balance - 1 WHERE id = '+Math.floor(Math.random()*9000), 'UPDATE account SET balance = balance + 1 WHERE id = '+(10000+Math.floor(Math.random()*9000)),'COMMIT']) { const b = performance.now(); await c.query(q).catch((e)=>console.log('ERR',e.message)); marks.push(Math.round(performance.now()-b)); }
      const d = performance.now()-a;
      if (d > 80) console.log(`client ${n} from ${(a-t0).toFixed(0)} for ${d.toFixed(0)}`, marks.join());
    }
    await c.end();
  };
  const all = Promise.all([1,2,3,4,5,6,7,8].map(work));
  await new Promise(r=>setTimeout(r,300));
  console.log((await (await import("./../../agent/pooler/console.ts")).withConsole(s.settings, (c:any)=>c.query("SHOW CONFIG"))).rows.filter((r:any)=>r.key.match(/login/)));for (let i=0;i<40;i++) { const a=now(); const b = await p.create('db_shop_prod_br_n'+i, 'db_shop_prod'); console.log('create', a, '->', now(), b.clone.clone_ms.toFixed(0), b.clone.paused_ms.toFixed(0)); }
  stop = true; await all;
} finally { await s.stop(); }
