import type { TimelineEvent } from "./api.js";

/** An event and when it happened, as far as its clock can be trusted. */
export interface Timed {
  event: TimelineEvent;
  time: number;
}

/**
 * Orders events by cause. An event follows those of the same source with a smaller number, and all events with one of the
 * IDs in its `after`. The clocks of browser, instances, store and runtime differ, so a time that is before that of a cause
 * is set to it. Then times decide between events of which none follows the other.
 */
export function orderByCause<Node extends Timed>(nodes: readonly Node[]): Node[] {
  const byTime = [...nodes].sort((a, b) => a.time - b.time); // stable
  const causes = causesOf(byTime);
  const ordered: Node[] = [];
  const visited = new Set<Node>();
  // Depth first, without recursion: a chain of causes can be as long as the timeline.
  for (const root of byTime) {
    const stack = visited.has(root) ? [] : [root];
    while (stack.length) {
      const node = stack.at(-1)!;
      visited.add(node);
      const cause = causes.get(node)!.find((cause) => !visited.has(cause));
      if (cause) {
        stack.push(cause);
        continue;
      }
      node.time = Math.max(node.time, ...causes.get(node)!.map(({ time }) => time));
      ordered.push(stack.pop()!);
    }
  }
  return ordered.sort((a, b) => a.time - b.time); // stable, and no cause is later than its effect
}

/** Returns the direct causes of each node, the earliest first. */
function causesOf<Node extends Timed>(nodes: readonly Node[]): Map<Node, Node[]> {
  const byId = new Map<string, Node[]>();
  const bySource = new Map<string, Node[]>();
  for (const node of nodes) {
    const { ids = [], source, seq } = node.event;
    for (const id of ids) append(byId, id, node);
    if (source && seq) append(bySource, source, node);
  }
  const causes = new Map(nodes.map((node) => [node, (node.event.after ?? []).flatMap((id) => byId.get(id) ?? [])]));
  for (const chain of bySource.values()) {
    chain.sort((a, b) => a.event.seq! - b.event.seq!);
    for (const [index, node] of chain.entries()) if (index) causes.get(node)!.push(chain[index - 1]!);
  }
  const position = new Map(nodes.map((node, index) => [node, index]));
  for (const list of causes.values()) list.sort((a, b) => position.get(a)! - position.get(b)!);
  return causes;
}

function append<Key, Value>(lists: Map<Key, Value[]>, key: Key, value: Value): void {
  const list = lists.get(key);
  if (list) list.push(value);
  else lists.set(key, [value]);
}
